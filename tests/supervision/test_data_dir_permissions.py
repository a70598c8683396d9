"""Who may write to the data folder."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.app import make_app
from gateway.supervision.data_dir_permissions import ProcessUser, data_dir_problems

app = make_app()

ME = os.geteuid()
OTHER = ME + 1000
NO_GROUP = frozenset[int]()
ALONE = ProcessUser(ME, NO_GROUP)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that only its user may write to, below one that is the same."""
    made = tmp_path / "volume" / "data"
    made.mkdir(parents=True)
    made.parent.chmod(0o755)
    made.chmod(0o755)
    (made / "admin.key").write_text("secret")
    (made / "admin.key").chmod(0o600)
    return made


def member_of(folder: Path) -> ProcessUser:
    """A process in the group of a folder."""
    return ProcessUser(ME, frozenset({folder.stat().st_gid}))


def found(folder: Path, user: ProcessUser = ALONE, volume: Path | None = None) -> list[tuple[str, str]]:
    """Problems of what a test has made, without those of folders above it."""
    problems = data_dir_problems(folder, user, lambda path: path == volume)
    return [(severity.value, text) for severity, text in problems if str(folder.parent) in text]


def test_a_folder_of_the_process_alone_has_no_problems(folder: Path) -> None:
    """Folders and files that only their user may write to are as they should be, and a missing folder is."""
    assert data_dir_problems(folder) == []
    assert data_dir_problems(folder / "new" / "deeper") == []


@pytest.mark.parametrize("mode, who", [(0o777, "all users"), (0o1777, "all users"), (0o775, "group ")])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int, who: str) -> None:
    """Others who may write to the data folder could replace keys, rules and Redis; the error says what to do."""
    folder.chmod(mode)
    ((severity, text),) = found(folder)
    assert severity == "error" and text.startswith(f"the data folder {folder} can be written by {who}")
    assert ": chmod " in text
    assert text.endswith("or choose another with --data-dir")


@pytest.mark.parametrize("mode, problems", [(0o777, 1), (0o1777, 0), (0o775, 1)])
def test_folders_above_it_count_but_for_sticky_ones(folder: Path, mode: int, problems: int) -> None:
    """Who may write to a folder above may replace the data folder, but in a sticky one, such as /tmp."""
    folder.parent.chmod(mode)
    assert [severity for severity, _ in found(folder)] == ["error"] * problems
    assert [severity for severity, _ in found(folder.parent / "new")] == ["error"] * problems


def test_files_in_it_that_others_may_write_to_are_refused(folder: Path) -> None:
    """So are files, unless nobody else can enter the folder."""
    (folder / "budgets.json").touch()
    (folder / "budgets.json").chmod(0o666)
    ((severity, text),) = found(folder)
    assert severity == "error" and f"{folder}/budgets.json in the data folder can be written by all users" in text
    folder.chmod(0o700)
    assert found(folder) == []


def test_what_belongs_to_another_user_is_refused(folder: Path) -> None:
    """The folder, those above it, and files in it belong to the process or to root."""
    texts = [text for severity, text in found(folder, ProcessUser(OTHER, NO_GROUP)) if severity == "error"]
    if ME == 0:  # whose files nobody distrusts
        assert texts == []
        for path in (folder, folder / "admin.key"):
            os.chown(path, OTHER, -1)
        texts = [text for severity, text in found(folder, ALONE) if severity == "error"]
    assert any(text.startswith(f"the data folder {folder} belongs to user ") for text in texts)
    assert any(text.startswith(f"{folder}/admin.key in the data folder belongs to user ") for text in texts)


def test_a_link_is_judged_by_what_it_names(folder: Path) -> None:
    """The folder that a link names, and those above both, count."""
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert found(link) == []
    folder.chmod(0o777)
    assert [severity for severity, _ in found(link)] == ["error"]


def test_volumes_of_kubernetes_are_warnings(folder: Path) -> None:
    """A volume of the process's group (fsGroup) and an emptyDir with a folder in it work; one user's own group is no
    other's."""
    volume, member = folder.parent, member_of(folder)
    folder.chmod(0o2770)
    volume.chmod(0o2775)
    assert [severity for severity, _ in found(folder, member, volume)] == ["warning", "warning"]
    volume.chmod(0o2777)
    assert [severity for severity, _ in found(folder, member, volume)] == ["warning", "warning"]
    assert [severity for severity, _ in found(folder, member)] == ["error", "warning"]
    volume.chmod(0o755)
    assert found(folder, ProcessUser(ME, NO_GROUP, private_group=folder.stat().st_gid)) == []


def test_a_volume_of_the_group_may_have_another_owner(folder: Path) -> None:
    """Kubernetes leaves the owner of a volume that it gives to a group."""
    if ME != 0:
        pytest.skip("needs root, who gives files away")
    os.chown(folder, OTHER, -1)
    folder.chmod(0o2770)
    assert {severity for severity, _ in found(folder, member_of(folder), folder)} == {"warning"}
    assert "error" in {severity for severity, _ in found(folder, ALONE, folder)}


def test_a_gateway_refuses_to_start(folder: Path) -> None:
    """`serve` prints the problems of its data folder and ends with 2."""
    folder.chmod(0o777)
    rules = folder.parent / "rules.yaml"
    rules.write_text("version: 1\n")
    result = CliRunner().invoke(app, ["serve", "--rules", str(rules), "--data-dir", str(folder)])
    assert result.exit_code == 2
    assert f"pointsman: error: the data folder {folder} can be written by all users" in result.output
