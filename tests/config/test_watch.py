"""Noticing that rule files have changed."""

from __future__ import annotations

from pathlib import Path

from gateway.config.watch import RuleFiles


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
    """Contents count, not times."""
    file = tmp_path / "a.yaml"
    file.write_text("version: 1")
    files = RuleFiles([file])
    file.unlink()
    file.write_text("version: 1")
    assert not files.changed()


def test_files_come_and_go(tmp_path: Path) -> None:
    """A directory changes when a rule file is added, renamed or removed, and when it goes itself."""
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
    """Kubernetes writes a new directory and turns the link `..data`: the files' own links stay as they are."""
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
