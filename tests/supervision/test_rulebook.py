"""The rulebook replaces rules when files change."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec
from gateway.supervision import rulebook
from gateway.supervision.rulebook import Rulebook
from tests.supervision.stage import RULES, loaded, rule_file

OTHER_RULES = RULES.replace("name: all", "name: other")
BAD_RULES = RULES.replace("engine: it", "engine: nobody")
DEADLINE_SECONDS = 120.0


@pytest.fixture(autouse=True)
def quick_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rulebook, "_WATCH_SECONDS", 0.01)


def play(file: Path, scene: Callable[[Rulebook, Awaitable[RulesSpec]], Awaitable[None]]) -> Rulebook:
    """Run a scene with an open rulebook and a pending wait for its next rules."""

    async def run() -> Rulebook:
        book = Rulebook([file])
        book.open(loaded(file))
        coming = asyncio.create_task(book.next())
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await scene(book, coming)
        finally:
            coming.cancel()
        return book

    return asyncio.run(run())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0.005)


def test_a_changed_file_is_taken_over(tmp_path: Path) -> None:
    """New rules get the next number."""
    file = rule_file(tmp_path)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        file.write_text(OTHER_RULES)
        assert [route.name for route in (await coming).routes] == ["other"]

    book = play(file, scene)
    assert (book.number, book.readings_ok, book.readings_refused) == (2, 1, 0)


def test_a_mistake_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    """Rules with a mistake are refused and reported; the next valid ones are used, and the problem is cleared."""
    file = rule_file(tmp_path)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        before = book.rules
        file.write_text(BAD_RULES)
        await until(lambda: book.readings_refused == 1)
        assert book.rules is before
        assert any("rules.yaml:3:" in problem and "nobody" in problem for problem in book.problems)
        file.write_text(OTHER_RULES)
        await coming
        assert book.problems == []

    book = play(file, scene)
    assert (book.number, book.readings_ok, book.readings_refused) == (2, 1, 1)


def test_certificates_are_read_before_rules_are_taken(tmp_path: Path) -> None:
    """A certificate that workers cannot read is reported as a problem of the rules, with the engine's place."""
    file = rule_file(tmp_path)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        file.write_text(RULES.replace("http:", "https:").replace("endpoints", "tls: {ca: /nowhere.pem}, endpoints"))
        await until(lambda: book.readings_refused == 1)
        (problem,) = book.problems
        assert problem.startswith(f"{file}:2:")
        assert "engine 'it': tls.ca (/nowhere.pem) cannot be read: No such file or directory" in problem

    assert play(file, scene).number == 1


def test_asked_for_rules_that_are_the_same_keep_their_number(tmp_path: Path) -> None:
    """A requested reload of unchanged files keeps the rules and their number."""
    file = rule_file(tmp_path)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        book.reload()
        await until(lambda: book.readings_ok == 1)

    book = play(file, scene)
    assert (book.number, book.readings_ok, book.readings_refused) == (1, 1, 0)


def test_reading_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a long file is read, the event loop stays free."""
    file = rule_file(tmp_path)
    is_reading, may_end = threading.Event(), threading.Event()
    load = rulebook.load_rules

    def long_load(paths: list[Path]) -> LoadedRules:
        is_reading.set()
        assert may_end.wait(DEADLINE_SECONDS)
        return load(paths)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        monkeypatch.setattr(rulebook, "load_rules", long_load)
        file.write_text(OTHER_RULES)
        await until(is_reading.is_set)  # the loop is free while the file is read
        assert book.number == 1
        may_end.set()
        await coming

    assert play(file, scene).number == 2


def test_a_fault_of_ours_does_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error during a reload is logged and counted as refused; the next change is still read."""
    caplog.set_level(logging.ERROR)
    file = rule_file(tmp_path)
    load = rulebook.load_rules

    def broken_load(paths: list[Path]) -> LoadedRules:
        raise RuntimeError("a fault")

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        monkeypatch.setattr(rulebook, "load_rules", broken_load)
        book.reload()
        await until(lambda: book.readings_refused == 1)
        monkeypatch.setattr(rulebook, "load_rules", load)
        file.write_text(OTHER_RULES)
        await coming

    assert play(file, scene).number == 2
    assert "cannot read the rules; rules 1 stay in force" in caplog.text


def test_nobody_waits_for_the_watch_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that watches the files ends with the task that waited for it, however long its interval."""
    monkeypatch.setattr(rulebook, "_WATCH_SECONDS", 3600.0)

    async def scene() -> None:
        book = Rulebook([rule_file(tmp_path)])
        book.open(loaded(rule_file(tmp_path)))
        waiting = asyncio.create_task(book.next())
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(scene())


def test_an_error_of_the_rules_does_not_hold_a_revocation_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A key that is taken out of its file is revoked although the rule file has an error; where the file of keys itself
    has one, or is gone, the log says that revocations are not applied."""
    keys = tmp_path / "keys" / "clients.yaml"
    keys.parent.mkdir()
    keys.write_text("- {id: '000000000001', tenant: acme, hash: 'sha256:" + "0" * 64 + "'}\n")
    file = rule_file(tmp_path, RULES + "auth: {keys: keys/clients.yaml}\n")

    def warned() -> int:
        return sum("revocations are not applied" in record.message for record in caplog.records)

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        keys.write_text("- {id: '000000000001', tenants: acme}\n")
        await until(lambda: warned() == 1)
        keys.unlink()
        await until(lambda: warned() > 1)
        file.write_text(BAD_RULES + "auth: {keys: keys/clients.yaml}\n")
        await until(lambda: any("nobody" in problem for problem in book.problems))
        keys.write_text("# none\n")
        auth = (await coming).auth
        assert auth is not None and auth.keys[0].keys == ()
        assert any("nobody" in problem for problem in book.problems)

    play(file, scene)


def test_a_damaged_file_revokes_what_it_does_not_name(tmp_path: Path) -> None:
    """While a file of keys has an error, a key whose id it does not have any more outside of comments is refused, and
    the others stay valid; once it is mended it counts as a whole."""
    keys = tmp_path / "keys" / "clients.yaml"
    keys.parent.mkdir()
    entries = ["- {{id: '{:012x}', tenant: acme, hash: 'sha256:{}'}}\n".format(id, "0" * 64) for id in range(4)]
    keys.write_text("".join(entries))
    file = rule_file(tmp_path, RULES + "auth: {keys: keys/clients.yaml}\n")

    def ids(rules: RulesSpec) -> list[int]:
        assert rules.auth is not None
        return [int(key.id, 16) for key in rules.auth.keys[0].keys]

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        keys.write_text(f"{entries[0]}  # {entries[1]}{entries[2]}  : [\n")
        assert ids(await coming) == [0, 2]
        waiting = asyncio.create_task(book.next())
        keys.write_text("".join(entries[:2]))
        assert ids(await waiting) == [0, 1]

    play(file, scene)


def test_a_changed_file_of_keys_is_taken_over(tmp_path: Path) -> None:
    """Keys of clients that are added to their file are in force without a change of the rules, under rules that an
    operator has put in force, too; a mistake in the file changes nothing."""
    keys = tmp_path / "keys" / "clients.yaml"
    keys.parent.mkdir()
    entry = "- {{id: '{id:012x}', tenant: acme, hash: 'sha256:" + "0" * 64 + "'}}\n"
    keys.write_text(entry.format(id=1))
    file = rule_file(tmp_path, RULES + "auth: {keys: keys/clients.yaml}\n")

    def ids(rules: RulesSpec) -> list[str]:
        assert rules.auth is not None
        return [key.id for key in rules.auth.keys[0].keys]

    async def scene(book: Rulebook, coming: Awaitable[RulesSpec]) -> None:
        assert ids(book.rules) == ["000000000001"]
        keys.write_text(entry.format(id=1) + entry.format(id=2))
        assert len(ids(await coming)) == 2
        assert book.number == 1
        await book.activate({str(file): file.read_text() + "# changed\n"}, "anna")
        keys.write_text(entry.format(id=1) + "- {id: '000000000002'}\n")
        book.reload()
        waiting = asyncio.create_task(book.next())
        await until(lambda: book.readings_refused > 0)
        assert len(ids(book.rules)) == 2
        keys.write_text(entry.format(id=3))
        while ids(await waiting) != ["000000000003"]:  # the others may be refused first
            waiting = asyncio.create_task(book.next())
        assert book.texts[str(file)].endswith("# changed\n")

    play(file, scene)
