"""Versions as they are stored, in a folder and in memory."""

import json
import logging
from pathlib import Path

import pytest

from gateway.rule_versions import store as store_module
from gateway.rule_versions.store import VersionStore, named
from gateway.rule_versions.version import NoSuchVersion, RulesRefused, Version, placed


def version(text: str, base: str = "base") -> Version:
    return Version(0, 1_700_000_000.5, "anna", "because", "api", f"digest of {text}", base, ("r.yaml",), ("r.yaml",))


def add(store: VersionStore, text: str) -> Version:
    return store.add(version(text), {"r.yaml": text})


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "versions" if request.param == "folder" else None)


def test_a_version_is_told_as_it_was_kept(store: VersionStore) -> None:
    """Numbers count from 1; texts are stored as they are written, with variables unexpanded."""
    assert store.latest is None
    first, second = add(store, "key: ${SECRET}"), add(store, "ü\r\n")
    assert [each.number for each in store.versions] == [1, 2]
    assert store.latest == second == store.get(2)
    assert (first.author, first.reason, first.time) == ("anna", "because", 1_700_000_000.5)
    assert store.texts(1) == {"r.yaml": "key: ${SECRET}"}
    assert store.texts(2) == {"r.yaml": "ü\r\n"}
    with pytest.raises(NoSuchVersion, match="there is no version 3: there are 1 to 2"):
        store.get(3)


def test_the_oldest_go(store: VersionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest versions are kept, and numbers continue."""
    monkeypatch.setattr(store_module, "MAX_VERSIONS", 3)
    for number in range(5):
        add(store, str(number))
    assert [each.number for each in store.versions] == [3, 4, 5]
    assert store.texts(3) == {"r.yaml": "2"}
    with pytest.raises(NoSuchVersion):
        store.texts(2)


def test_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    """A store that opens the folder again finds all versions; only this user may read them."""
    before = VersionStore(tmp_path / "versions")
    add(before, "one"), add(before, "two")
    after = VersionStore(tmp_path / "versions")
    assert after.versions == before.versions
    assert add(after, "three").number == 3
    assert VersionStore(tmp_path / "versions").texts(3) == {"r.yaml": "three"}
    assert (tmp_path / "versions").stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "versions").iterdir()} == {0}


def test_two_gateways_on_one_folder_never_share_a_number(tmp_path: Path) -> None:
    """A number that another gateway has used is skipped."""
    one, other = VersionStore(tmp_path), VersionStore(tmp_path)
    assert [add(one, "a").number, add(other, "b").number, add(one, "c").number] == [1, 2, 3]
    assert VersionStore(tmp_path).texts(2) == {"r.yaml": "b"}


def test_a_spoilt_file_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that cannot be read is logged, and its number is not used again."""
    add(VersionStore(tmp_path), "good")
    (tmp_path / "000002.json").write_text('{"number": 2')
    (tmp_path / "000003.json").write_text("[]")
    (tmp_path / "notes.json").write_text("mine")
    with caplog.at_level(logging.WARNING):
        store = VersionStore(tmp_path)
    assert [each.number for each in store.versions] == [1]
    assert "000002.json is passed over" in caplog.text
    assert "000003.json is passed over" in caplog.text
    assert add(store, "next").number == 4
    (tmp_path / "000004.json").write_text(json.dumps({"texts": {}}))
    with pytest.raises(NoSuchVersion, match="version 4 cannot be read any more"):
        store.texts(4)


def test_a_folder_that_takes_nothing_costs_no_activation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If the folder cannot be written, versions are kept in memory and an error is logged."""
    file = tmp_path / "no-folder"
    file.write_text("")
    store = VersionStore(file / "versions")
    with caplog.at_level(logging.ERROR):
        assert add(store, "one").number == 1
    assert "kept in memory alone" in caplog.text
    assert store.texts(1) == {"r.yaml": "one"}


def test_rebasing_keeps_a_version_with_the_files_names_of_now(store: VersionStore) -> None:
    """When the files on disk have the content of a version, the version takes their names."""
    add(store, "one")
    store.rebase(1, "digest of one", ["new/r.yaml"], {"new/r.yaml": "one"})
    kept = store.get(1)
    assert (kept.is_exported, kept.base_files, kept.files) == (True, ("new/r.yaml",), ("new/r.yaml",))
    assert store.texts(1) == {"new/r.yaml": "one"}


def test_texts_of_another_place_get_the_names_of_this_one() -> None:
    """Files at the same position in the list are the same file; a new file is placed beside the first."""
    texts = {"/a/r.yaml": "1", "/a/s.yaml": "2", "/a/new.yaml": "3"}
    assert placed(texts, ["/a/r.yaml", "/a/s.yaml"], ["b/x.yaml", "b/s.yaml"]) == {
        "b/x.yaml": "1",
        "b/s.yaml": "2",
        "b/new.yaml": "3",
    }


KNOWN = ["rules/b.yaml", "rules/a.yaml", "more/a.yaml", "more/c.yaml"]


def test_names_are_those_of_the_files() -> None:
    """The order is that of the known files, and new files come last."""
    sent = {"new.yaml": "5", "more/a.yaml": "3", "c.yaml": "4", "rules/a.yaml": "2", "b.yaml": "1", "more/d.yml": "6"}
    assert list(named(sent, KNOWN).items()) == [
        ("rules/b.yaml", "1"),
        ("rules/a.yaml", "2"),
        ("more/a.yaml", "3"),
        ("more/c.yaml", "4"),
        ("more/d.yml", "6"),
        ("rules/new.yaml", "5"),
    ]


@pytest.mark.parametrize(
    "sent, why",
    [
        ({}, "there is no file"),
        ({"rules.txt": ""}, "ends with .yaml or .yml"),
        ({"rules/.hidden.yaml": ""}, "ends with .yaml or .yml"),
        ({"/etc/passwd": ""}, "ends with .yaml or .yml"),
        ({"/etc/x.yaml": ""}, "one of: rules, more"),
        ({"../x.yaml": ""}, "one of: rules, more"),
        ({"b.yaml": "", "rules/b.yaml": ""}, "rules/b.yaml is given twice"),
    ],
)
def test_other_names_are_refused(sent: dict[str, str], why: str) -> None:
    """Rule files are only accepted in folders that have rule files already."""
    with pytest.raises(RulesRefused) as refused:
        named(sent, KNOWN)
    assert why in str(refused.value)
