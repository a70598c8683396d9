"""Where models, configurations and labels are stored."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from engines.core.errors import EngineError, ErrorCode
from engines.repository.config import read
from engines.repository.layout import (
    check_roots,
    config_path,
    fingerprint,
    model_directories,
    read_labels,
    version_of,
    versions_in,
    wanted_versions,
)
from tests.engines.repository.fakes import write_model


def test_models_of_several_roots(tmp_path: Path) -> None:
    """A model that is in two roots has two directories. Files and hidden directories are ignored."""
    for root, name in (("a", "one"), ("a", "two"), ("b", "two"), ("b", "three"), ("b", ".git")):
        write_model(tmp_path / root, name)
    (tmp_path / "a" / "notes.txt").touch()
    roots = [tmp_path / "a", tmp_path / "b"]
    assert model_directories(roots) == {
        "one": [roots[0] / "one"],
        "three": [roots[1] / "three"],
        "two": [roots[0] / "two", roots[1] / "two"],
    }


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    """A root that is not a directory is refused by name."""
    with pytest.raises(EngineError, match=r"repository path is not a valid directory: '.*nowhere'") as caught:
        check_roots([tmp_path, tmp_path / "nowhere"])
    assert caught.value.code is ErrorCode.INVALID_ARG


def test_a_configuration_that_the_host_chooses(tmp_path: Path) -> None:
    """configs/NAME.pbtxt takes precedence over config.pbtxt."""
    directory = write_model(tmp_path, "m")
    (directory / "configs").mkdir()
    (directory / "configs" / "h100.pbtxt").touch()
    assert config_path(directory) == directory / "config.pbtxt"
    assert config_path(directory, "h100") == directory / "configs" / "h100.pbtxt"
    assert config_path(directory, "a100") == directory / "config.pbtxt"


@pytest.mark.parametrize(
    "text, labels",
    [("cat\ndog\n", ("cat", "dog")), ("cat\ndog", ("cat", "dog")), ("cat\n\ndog\n", ("cat", "", "dog")), ("", ())],
)
def test_labels(text: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    """A line is a label; only outputs that name a file have any."""
    (tmp_path / "labels.txt").write_text(text)
    config = read('output [ { name: "y", label_filename: "labels.txt" }, { name: "z" } ]')
    assert read_labels(config, tmp_path) == {"y": labels}


def test_labels_that_are_missing(tmp_path: Path) -> None:
    """The error is Triton's."""
    with pytest.raises(EngineError) as caught:
        read_labels(read('output [ { name: "y", label_filename: "no.txt" } ]'), tmp_path)
    assert caught.value.code is ErrorCode.INTERNAL
    error_text = f"failed to open text file for read {tmp_path}/no.txt: No such file or directory"
    assert caught.value.message == error_text


@pytest.mark.parametrize(
    "name, version",
    [
        ("1", 1),
        ("10", 10),
        ("0", 0),
        ("03", None),
        ("-4", None),
        ("5a", None),
        ("x", None),
        ("1.0", None),
        ("", None),
        ("٣", None),
        (" 1", None),
    ],
)
def test_a_version_is_a_whole_number(name: str, version: int | None) -> None:
    """Leading zeros, signs and other letters make a directory no version."""
    assert version_of(name) == version


def test_the_versions_of_a_model(tmp_path: Path) -> None:
    """Directories that are numbers, in order of the numbers; a file of such a name is none."""
    for name in ("10", "9", "1", "03", "configs", "warmup", "initial_state", "x", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "7").touch()
    assert versions_in(tmp_path) == [1, 9, 10]


@pytest.mark.parametrize(
    "policy, versions",
    [
        ("latest { num_versions: 1 }", [10]),
        ("latest { num_versions: 2 }", [9, 10]),
        ("latest { num_versions: 20 }", [1, 9, 10]),
        ("latest { }", []),
        ("all { }", [1, 9, 10]),
        ("specific { versions: [ 10, 1, 5 ] }", [1, 10]),
        ("specific { versions: [ 5 ] }", []),
    ],
)
def test_a_version_policy(policy: str, versions: list[int]) -> None:
    """The latest ones, all, or the named ones that exist."""
    assert wanted_versions(read(f"version_policy {{ {policy} }}"), [10, 1, 9]) == versions


def rewrite(path: Path) -> None:
    """The same length at another time: nanoseconds are set, as clocks of file systems are coarse."""
    path.write_text(path.read_text())
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


def cache_bytecode(directory: Path) -> None:
    (directory / "1" / "__pycache__").mkdir()
    (directory / "1" / "__pycache__" / "model.pyc").touch()


# A change of a model with versions 1 and 2, whether it changes the model, and which versions it changes.
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
    """A file in a version's directory changes that version, any other file changes all, and the configuration none.
    Python's bytecode is ignored."""
    directory = write_model(tmp_path, "m", versions=("1", "2"))
    before = fingerprint(directory)
    change(directory)
    after = fingerprint(directory)
    assert (before != after) is has_changed
    assert {version for version in (1, 2) if not after.has_same_version(before, version)} == versions


def test_nothing_is_the_same_as_nothing_known(tmp_path: Path) -> None:
    """Without an earlier fingerprint every version counts as changed."""
    assert not fingerprint(write_model(tmp_path, "m")).has_same_version(None, 1)
