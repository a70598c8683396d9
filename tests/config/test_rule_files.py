"""Rule files on disk."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config import rule_files
from gateway.config.rule_files import RuleFiles, digest_of, read_files


def test_a_directory_gives_its_yaml_files_in_name_order(tmp_path: Path) -> None:
    """Other files, hidden files and directories inside are skipped."""
    for name in ("20-b.yml", "10-a.yaml", "notes.txt", ".hidden.yaml"):
        (tmp_path / name).write_text(name)
    (tmp_path / "more.yaml").mkdir()
    files, problems = read_files([tmp_path])
    assert [(file.path.name, file.content) for file in files] == [
        ("10-a.yaml", b"10-a.yaml"),
        ("20-b.yml", b"20-b.yml"),
    ]
    assert problems == []


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    """A file given twice, by itself and in its directory, is read once."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files, _ = read_files([file, tmp_path, tmp_path / "." / "a.yaml"])
    assert [read.path for read in files] == [file]


def test_what_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A missing file, an empty directory and an impossible path are reported as problems, not raised."""
    _, problems = read_files([tmp_path / "missing.yaml", tmp_path, Path("nul\0.yaml")])
    messages = [problem.message for problem in problems]
    assert "cannot be read: No such file or directory" in messages
    assert "the directory has no .yaml or .yml file" in messages
    assert len(messages) == 3


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a device"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A pipe, which would block its reader, a device and a folder in the place of a file are problems; a file in the
    same place later is a change."""
    path, files = tmp_path / "a.yaml", RuleFiles([tmp_path / "a.yaml"])
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a device":
        path.symlink_to(os.devnull)
    else:
        path.mkdir()
    found: list[Any] = []
    reading = threading.Thread(target=lambda: found.extend((*read_files([path])[1], files.changed())), daemon=True)
    reading.start()
    reading.join(60)
    assert not reading.is_alive() and len(found) == 2
    problem, _ = found
    expected = "the directory has no .yaml or .yml file" if kind == "a folder" else f"it is {kind}, not a file"
    assert expected in problem.message
    path.rmdir() if kind == "a folder" else path.unlink()
    path.write_text("version: 1")
    assert files.changed()


def test_the_digest_knows_where_a_file_ends() -> None:
    """Text that moves from one file to the next changes the digest."""
    assert digest_of([b"ab", b"c"]) != digest_of([b"a", b"bc"])


def test_a_change_is_told_once(tmp_path: Path) -> None:
    """changed() compares with the call before, the first one with the construction."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files = RuleFiles([file])
    assert not files.changed()
    file.write_text("version: 2")
    assert files.changed()
    assert not files.changed()


def test_the_same_text_written_again_is_no_change(tmp_path: Path) -> None:
    """A file rewritten with the same content counts as unchanged."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files = RuleFiles([file])
    file.unlink()
    file.write_text("version: 1")
    assert not files.changed()


def test_files_come_and_go(tmp_path: Path) -> None:
    """A directory changes when a rule file is added, renamed or removed, and when the directory itself is removed."""
    rules = tmp_path / "rules"
    rules.mkdir()
    files = RuleFiles([rules])
    (rules / "a.yaml").write_text("version: 1")
    assert files.changed()
    (rules / "a.yaml").rename(rules / "b.yaml")
    assert files.changed()
    (rules / "notes.txt").write_text("no rule file")
    assert not files.changed()
    (rules / "b.yaml").unlink()
    assert files.changed()
    (rules / "notes.txt").unlink()
    rules.rmdir()
    assert files.changed()
    assert not files.changed()


def test_a_kubernetes_configmap_is_swapped_by_symlink(tmp_path: Path) -> None:
    """Kubernetes writes a new directory and replaces the link `..data`: the links of the files do not change."""
    for number in (1, 2):
        (tmp_path / f"..{number}").mkdir()
        (tmp_path / f"..{number}" / "a.yaml").write_text(f"version: 1 # {number}")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    files = RuleFiles([tmp_path])
    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").replace(tmp_path / "..data")
    assert files.changed()
    assert not files.changed()


def test_waiting_for_a_change(tmp_path: Path) -> None:
    """`wait` returns at a change or when its event is set; the content at that time counts as seen."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files = RuleFiles([file])
    is_asked = threading.Event()
    waiting = threading.Thread(target=files.wait, args=(is_asked, 0.01), daemon=True)
    waiting.start()
    time.sleep(0.1)
    assert waiting.is_alive()
    file.write_text("version: 1 # changed")
    waiting.join(120)
    assert not waiting.is_alive() and not files.changed()
    file.write_text("version: 1 # changed again")
    is_asked.set()
    files.wait(is_asked, 3600)
    assert not files.changed()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is a minute ahead of the files': recent writes count as old."""
    monkeypatch.setattr(rule_files, "time", SimpleNamespace(time=lambda: time.time() + 60))


def test_files_that_lie_there_are_not_read_each_time(
    tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of ten checks compare only file stamps, for directories and for files; a changed stamp causes a read."""
    num_read = 0

    def counting(paths: Sequence[Path]) -> Any:
        nonlocal num_read
        num_read += 1
        return read_files(paths)

    monkeypatch.setattr(rule_files, "read_files", counting)
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("version: 1")
    files = RuleFiles([tmp_path, tmp_path / "a.yaml"])
    assert not files.changed()  # the first check lists the files, the second one reads their stamps
    num_read = 0
    assert not any(files.changed() for _ in range(40))
    assert num_read == 4
    for change in (
        lambda: (tmp_path / "a.yaml").write_text("version: 2"),
        lambda: (tmp_path / "c.yaml").write_text("version: 3"),
        lambda: (tmp_path / "b.yaml").unlink(),
        lambda: (tmp_path / "a.yaml").unlink(),
    ):
        change()
        assert files.changed()
        assert not any(files.changed() for _ in range(3))


def test_stamps_that_are_new_are_not_believed(tmp_path: Path) -> None:
    """Of two changes within one tick of the file system's clock, the second one is detected by content."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    before = file.stat()
    files = RuleFiles([file])
    assert not any(files.changed() for _ in range(3))
    file.write_text("version: 2")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert files.changed()


def test_a_change_without_a_stamp(tmp_path: Path, later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On mounts with unreliable stamps, every tenth check reads the files regardless of them."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    monkeypatch.setattr(rule_files, "_stamp", lambda place: (1, 2, 3, 4, 5))
    files = RuleFiles([file])
    assert not any(files.changed() for _ in range(5))
    file.write_text("version: 2")
    assert [files.changed() for _ in range(12)].count(True) == 1
