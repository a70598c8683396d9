"""Rule files on disk."""

from __future__ import annotations

from pathlib import Path

from gateway.config.files import digest_of, read_files


def test_a_directory_gives_its_yaml_files_in_name_order(tmp_path: Path) -> None:
    """Other files, hidden files and directories inside are passed over."""
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
    """A file and its directory, both given, do not declare everything twice."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files, _ = read_files([file, tmp_path, tmp_path / "." / "a.yaml"])
    assert [read.path for read in files] == [file]


def test_what_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """A missing file, an empty directory and an impossible path are told, not raised."""
    _, problems = read_files([tmp_path / "missing.yaml", tmp_path, Path("nul\0.yaml")])
    messages = [problem.message for problem in problems]
    assert "cannot be read: No such file or directory" in messages
    assert "the directory has no .yaml or .yml file" in messages
    assert len(messages) == 3


def test_the_digest_knows_where_a_file_ends() -> None:
    """Text that moves from one file to the next is another digest."""
    assert digest_of([b"ab", b"c"]) != digest_of([b"a", b"bc"])
