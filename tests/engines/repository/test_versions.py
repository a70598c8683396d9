"""Version directories, and what a policy takes of them."""

from pathlib import Path

import pytest

from engines.repository.config import read
from engines.repository.versions import version_of, versions_in, wanted_versions


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
    """The latest so many, all, or those that are named and there."""
    assert wanted_versions(read(f"version_policy {{ {policy} }}"), [10, 1, 9]) == versions
