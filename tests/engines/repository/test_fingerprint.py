"""How a change of a model's files is seen."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.repository.fingerprint import fingerprint
from tests.engines.repository.fakes import write_model


def rewrite(path: Path) -> None:
    """The same length at another time: nanoseconds are set, as clocks of file systems are coarse."""
    path.write_text(path.read_text())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def cache_bytecode(directory: Path) -> None:
    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.pyc").touch()


# What happens to a model of versions 1 and 2, whether the model has changed by it, and which versions.
CHANGES: list[tuple[Callable[[Path], object], bool, set[int]]] = [
    (lambda directory: None, False, set()),
    (lambda directory: rewrite(directory / "1" / "model.py"), True, {1}),
    (lambda directory: (directory / "2" / "model.py").unlink(), True, {2}),
    (lambda directory: (directory / "2" / "more.txt").touch(), True, {2}),
    (lambda directory: rewrite(directory / "config.pbtxt"), True, set()),
    (lambda directory: (directory / "labels.txt").write_text("a"), True, {1, 2}),
    (lambda directory: (directory / "3").mkdir(), True, set()),
    (lambda directory: (directory / "shared").mkdir(), True, {1, 2}),
    (cache_bytecode, False, set()),
]


@pytest.mark.parametrize("change, has_changed, versions", CHANGES)
def test_what_counts_as_a_change(
    change: Callable[[Path], object], has_changed: bool, versions: set[int], tmp_path: Path
) -> None:
    """Any file of a version changes that version, any other file all of them, and the configuration none by itself;
    what Python leaves behind does not count."""
    directory = write_model(tmp_path, "m", versions=("1", "2"))
    before = fingerprint(directory)
    change(directory)
    after = fingerprint(directory)
    assert (before != after) is has_changed
    assert {version for version in (1, 2) if not after.has_same_version(before, version)} == versions


def test_nothing_is_the_same_as_nothing_known(tmp_path: Path) -> None:
    """Where the files before are not known, every version counts as changed."""
    assert not fingerprint(write_model(tmp_path, "m")).has_same_version(None, 1)
