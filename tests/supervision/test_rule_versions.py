"""Rules that operators activate, beside the rules in the files."""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.config.rules import load_rules, load_texts
from gateway.rule_versions.editor import EditError, add_endpoint
from gateway.rule_versions.version import NoSuchVersion, RulesRefused
from gateway.supervision import rulebook
from gateway.supervision.rulebook import Rulebook
from tests.supervision.stage import RULES, loaded, rule_file

DEADLINE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulebook, "_WATCH_SECONDS", 0.01)


def named(route: str) -> str:
    """Rules with this name for their route."""
    return RULES.replace("name: all", f"name: {route}")


def opened(file: Path, folder: Path | None = None, api_variables: Collection[str] = ()) -> Rulebook:
    """A gateway's rulebook after its start."""
    book = Rulebook([file], folder, api_variables)
    book.open(loaded(file))
    return book


def route(book: Rulebook) -> str:
    return book.rules.routes[0].name


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await scene()

    asyncio.run(bounded())


def test_an_activation_is_a_version_with_author_and_reason(tmp_path: Path) -> None:
    """When the call returns, the rules are in force, and the version records the author, the reason, and the files on
    which it is based."""
    file = rule_file(tmp_path)

    async def scene() -> None:
        book = opened(file)
        base = book.rules.digest
        version = await book.activate({"rules.yaml": named("annas")}, "anna", "a try")
        assert route(book) == "annas"
        assert (version.number, version.author, version.reason, version.source) == (2, "anna", "a try", "api")
        assert (version.base, version.digest) == (base, book.rules.digest)
        assert [each.number for each in book.versions()] == [1, 2]
        assert book.texts_of(1) == {str(file): RULES}
        assert file.read_text() == RULES

    run(scene)


def test_rules_with_a_mistake_are_refused_whole_with_its_place(tmp_path: Path) -> None:
    """Nothing changes, and each problem names file, line and column."""
    file = rule_file(tmp_path)

    async def scene() -> None:
        book = opened(file)
        with pytest.raises(RulesRefused) as refused:
            await book.activate({"rules.yaml": RULES.replace("engine: it", "engine: nobody")}, "anna")
        (problem,) = [each for each in refused.value.problems if each.is_error]
        assert (problem.location.file, problem.location.line) == (str(file), 3)
        assert "nobody" in problem.message
        with pytest.raises(RulesRefused, match=r"half\.yaml:1:1: error: not UTF-8"):
            await book.activate({"rules.yaml": RULES, "half.yaml": "\ud800"}, "anna")
        assert (book.number, route(book), book.problems) == (1, "all", [])

    run(scene)


def test_what_is_in_force_already_is_no_new_version(tmp_path: Path) -> None:
    """Activating the same texts returns the version that has them."""

    async def scene() -> None:
        book = opened(rule_file(tmp_path))
        assert (await book.activate({"rules.yaml": RULES}, "anna")).number == 1

    run(scene)


def test_an_edit_is_a_version(tmp_path: Path) -> None:
    """An edit applies to the rules in force; one that fails changes nothing."""
    file = rule_file(tmp_path)

    async def scene() -> None:
        book = opened(file)
        version = await book.change(lambda texts: add_endpoint(texts, "it", "http://127.0.0.1:2"), "anna", "more")
        assert version.number == 2
        assert [each.url for each in book.rules.engines["it"].endpoints] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        with pytest.raises(EditError):
            await book.change(lambda texts: add_endpoint(texts, "other", "http://127.0.0.1:2"), "anna")
        with pytest.raises(RulesRefused):
            await book.change(lambda texts: texts.update({str(file): "version: 2\n"}), "anna")
        assert book.number == 2

    run(scene)


def test_activations_come_one_after_the_other(tmp_path: Path) -> None:
    """Concurrent edits are all kept: each starts from the result of the one before."""

    async def scene() -> None:
        book = opened(rule_file(tmp_path))
        edits = [f"http://127.0.0.1:{port}" for port in range(2, 8)]
        await asyncio.gather(
            *(book.change(lambda texts, url=url: add_endpoint(texts, "it", url), "anna") for url in edits)  # type: ignore[misc]
        )
        assert {each.url for each in book.rules.engines["it"].endpoints} == {"http://127.0.0.1:1", *edits}
        assert book.number == 7

    run(scene)


def test_rolling_back_again_and_again_goes_further_back(tmp_path: Path) -> None:
    """Each rollback reactivates the version before, as a new version, until there is none before."""

    async def scene() -> None:
        book = opened(rule_file(tmp_path))
        for name in ("second", "third"):
            await book.activate({"rules.yaml": named(name)}, "anna")
        back = await book.roll_back("ben", "too slow")
        assert (route(book), back.number, back.of, back.author) == ("second", 4, 2, "ben")
        assert back.reason == "back to version 2 by anna: too slow"
        await book.roll_back("ben")
        assert route(book) == "all"
        with pytest.raises(NoSuchVersion, match="nothing before version 5"):
            await book.roll_back("ben")
        await book.activate(3, "anna", "again")
        assert (route(book), book.number, book.in_force.of) == ("third", 6, 3)
        await book.roll_back("ben")
        assert route(book) == "all"
        await book.activate({"rules.yaml": named("fourth")}, "anna")
        await book.activate({"rules.yaml": named("fifth")}, "anna")
        await book.roll_back("ben")
        await book.activate({"rules.yaml": named("sixth")}, "anna")
        await book.roll_back("ben")
        assert route(book) == "fourth"

    run(scene)


def test_rolling_back_goes_to_what_was_there_and_not_to_what_had_been_taken_back(tmp_path: Path) -> None:
    """A rollback skips versions that were rolled back earlier."""

    async def scene() -> None:
        book = opened(rule_file(tmp_path))
        await book.activate({"rules.yaml": named("wrong")}, "anna")
        await book.roll_back("ben")
        await book.activate({"rules.yaml": named("slow")}, "anna")
        back = await book.roll_back("ben")
        assert (route(book), back.of) == ("all", 1)

    run(scene)


def test_a_version_stays_in_force_over_a_restart(tmp_path: Path) -> None:
    """An activated version stays in force as long as the files on which it is based are unchanged, wherever they
    are."""
    folder = tmp_path / "versions"
    file = rule_file(tmp_path)

    async def scene() -> None:
        await opened(file, folder).activate({"rules.yaml": named("kept")}, "anna")

    run(scene)
    again = opened(file, folder)
    assert (route(again), again.number, len(again.versions())) == ("kept", 2, 2)
    moved = tmp_path / "elsewhere" / "pointsman.yaml"
    moved.parent.mkdir()
    moved.write_text(RULES)
    elsewhere = opened(moved, folder)
    assert (route(elsewhere), elsewhere.number, elsewhere.files) == ("kept", 2, [str(moved)])
    assert opened(moved, folder).texts_of(2) == {str(moved): named("kept")}


def test_files_that_have_changed_win(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Changed files supersede an activated version that was not exported, at once or at the next start, and the
    log reports it."""
    file = rule_file(tmp_path)
    folder = tmp_path / "versions"

    async def scene() -> None:
        book = opened(file, folder)
        await book.activate({"rules.yaml": named("unexported")}, "anna", "a try")
        file.write_text(named("second"))
        await book.next()
        assert (route(book), book.number) == ("second", 3)
        assert book.in_force.reason == "they have changed; supersedes version 2 by anna (a try), which was not exported"
        await book.activate({"rules.yaml": named("third")}, "anna")

    run(scene)
    assert "supersede version 2 by anna (a try)" in caplog.text
    file.write_text(named("fourth"))
    again = opened(file, folder)
    assert (route(again), again.number, again.in_force.source) == ("fourth", 5, "files")
    assert "supersedes version 4 by anna" in again.in_force.reason


def test_an_exported_version_is_that_of_the_files(tmp_path: Path) -> None:
    """Files that equal the version in force change nothing, and a later change of them supersedes no version."""
    file = rule_file(tmp_path)

    async def scene() -> None:
        book = opened(file)
        await book.activate({"rules.yaml": named("exported")}, "anna")
        file.write_text(named("exported"))
        await book.next()
        assert (book.number, book.in_force.is_exported) == (2, True)
        file.write_text(named("later"))
        await book.next()
        assert book.in_force.reason == "they have changed"

    run(scene)


def test_a_touched_file_supersedes_nothing(tmp_path: Path) -> None:
    """Rereading unchanged files leaves an operator's version in force."""
    file = rule_file(tmp_path)

    async def scene() -> None:
        book = opened(file)
        await book.activate({"rules.yaml": named("kept")}, "anna")
        coming = asyncio.create_task(book.next())
        book.reload()
        while book.readings_ok < 1:
            await asyncio.sleep(0.005)
        assert (route(book), book.number) == ("kept", 2)
        file.write_text(named("changed"))
        await coming
        assert book.number == 3

    run(scene)


def test_a_version_that_cannot_be_used_any_more_gives_way_to_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the environment lacks a variable that a version needs, the gateway starts with the files and gives the
    reason."""
    file = rule_file(tmp_path)
    folder = tmp_path / "versions"
    monkeypatch.setenv("ROUTE", "from-outside")

    async def scene() -> None:
        book = opened(file, folder, ["ROUTE"])
        await book.activate({"rules.yaml": named("'${ROUTE}'")}, "anna")
        assert route(book) == "from-outside"

    run(scene)
    assert "from-outside" not in "".join(path.read_text() for path in folder.iterdir())
    monkeypatch.delenv("ROUTE")
    again = opened(file, folder, ["ROUTE"])
    assert (route(again), again.number) == ("all", 3)
    assert any("ROUTE is not set" in problem for problem in again.problems)


def test_judging_changes_nothing(tmp_path: Path) -> None:
    """Rules can be checked without activating them."""

    async def scene() -> None:
        book = opened(rule_file(tmp_path))
        found = await book.judge({"rules.yaml": named("other")})
        assert found.rules is not None and found.rules.routes[0].name == "other"
        assert (await book.judge({"rules.yaml": ""})).rules is None
        assert (book.number, len(book.versions())) == (1, 1)

    run(scene)


def test_texts_are_judged_as_files_are(tmp_path: Path) -> None:
    """Texts have the same digest, rules and problems, whether read from disk or sent."""
    file = rule_file(tmp_path, RULES.replace("engines:", "engines:  # ü\n "))
    from_disk = load_rules([file])
    sent = load_texts({str(file): file.read_text()})
    assert from_disk.rules == sent.rules
    assert from_disk.rules is not None and sent.rules is not None
    assert (from_disk.rules.digest, from_disk.problems) == (sent.rules.digest, sent.problems)


def test_rules_whose_tests_fail_are_refused(tmp_path: Path) -> None:
    """Rules with failing tests are refused from an operator and from the files; the rules in force stay."""
    file = rule_file(tmp_path)
    failing = named("other") + "tests: [{name: t, request: {model: m}, expect: {no_route: true}}]\n"

    async def scene() -> None:
        book = opened(file)
        with pytest.raises(RulesRefused, match=r"rules.yaml:4:\d+: error: test 't' fails: route 'other' takes"):
            await book.activate({"rules.yaml": failing}, "anna")
        coming = asyncio.create_task(book.next())
        file.write_text(failing)
        while book.readings_refused < 1:
            await asyncio.sleep(0.005)
        assert route(book) == "all"
        assert any("test 't' fails" in problem for problem in book.problems)
        file.write_text(failing.replace("no_route: true", "route: other"))
        await coming
        assert route(book) == "other"

    run(scene)
