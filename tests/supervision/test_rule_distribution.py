"""Rules that operators activate, among gateways that share a Redis."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.config.rule_files import digest_of
from gateway.redis.bounded_client import BoundedRedis
from gateway.rule_versions.version import Version
from gateway.supervision.rule_distribution import KEY, RuleSharing
from gateway.supervision.rule_signature import RuleSignature, read_shared_secret
from gateway.supervision.rulebook import Rulebook
from tests.supervision.stage import RULES, loaded, rule_file
from tests.support.redis_server import RedisServer, program
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]


@pytest.fixture(scope="module", autouse=True)
def has_program() -> None:
    program()


def named(route: str) -> str:
    return RULES.replace("name: all", f"name: {route}")


def book_in(folder: Path, text: str = RULES) -> Rulebook:
    """A gateway's rulebook, with rules in a folder of its own."""
    folder.mkdir()
    file = rule_file(folder, text)
    book = Rulebook([file], api_variables=["ROUTE"])
    book.open(loaded(file))
    return book


def route(book: Rulebook) -> str:
    return book.rules.routes[0].name


def play(server: RedisServer, scene: Callable[[BoundedRedis], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(120), stored(server) as store:
            await scene(store)

    asyncio.run(run())


async def decide(book: Rulebook, sharing: RuleSharing, name: str) -> None:
    await book.activate({"rules.yaml": named(name)}, "anna", f"for {name}")
    sharing.decided()
    assert await sharing.share()


def test_what_one_decides_the_other_takes_over(redis_server: RedisServer, tmp_path: Path) -> None:
    """A version activated at one gateway is applied once at the other, with author and reason, under the other's file
    names."""
    one, other = book_in(tmp_path / "one"), book_in(tmp_path / "other")

    async def scene(store: BoundedRedis) -> None:
        sharing, looking = RuleSharing(one, store, "one:1"), RuleSharing(other, store, "other:1")
        assert not await looking.look()
        await decide(one, sharing, "second")
        assert await looking.look()
        assert not await looking.look()
        assert not await sharing.look()

    play(redis_server, scene)
    assert route(other) == "second"
    assert (other.in_force.author, other.in_force.reason) == ("anna", "for second")
    assert other.files == [str(tmp_path / "other" / "rules.yaml")]


def test_going_back_at_one_is_going_back_at_the_other(redis_server: RedisServer, tmp_path: Path) -> None:
    """After one gateway applies another's rollback, its own rollback goes one version further back."""
    one, other = book_in(tmp_path / "one"), book_in(tmp_path / "other")

    async def scene(store: BoundedRedis) -> None:
        sharing, looking = RuleSharing(one, store, "one:1"), RuleSharing(other, store, "other:1")
        for name in ("second", "third"):
            await decide(one, sharing, name)
            assert await looking.look()
        await one.roll_back("anna")
        sharing.decided()
        await sharing.share()
        assert await looking.look()
        assert route(other) == "second"
        await other.roll_back("ben")
        assert route(other) == "all"

    play(redis_server, scene)


def test_a_gateway_with_other_files_takes_nothing(redis_server: RedisServer, tmp_path: Path) -> None:
    """A gateway with different files does not apply the version, since each set of files has its own field."""
    one, other = book_in(tmp_path / "one"), book_in(tmp_path / "other", named("different"))

    async def scene(store: BoundedRedis) -> None:
        await decide(one, RuleSharing(one, store, "one:1"), "second")
        assert not await RuleSharing(other, store, "other:1").look()

    play(redis_server, scene)
    assert route(other) == "different"


def test_what_was_decided_while_it_was_read_stays(redis_server: RedisServer, tmp_path: Path) -> None:
    """A reply of Redis that is older than a local activation is ignored."""
    one, other = book_in(tmp_path / "one"), book_in(tmp_path / "other")

    async def scene(store: BoundedRedis) -> None:
        sharing, deciding = RuleSharing(one, store, "one:1"), RuleSharing(other, store, "other:1")
        await decide(one, sharing, "second")
        looking = asyncio.create_task(deciding.look())
        await asyncio.sleep(0)  # the read has been sent
        await other.activate({"rules.yaml": named("third")}, "ben")
        deciding.decided()
        assert not await looking
        assert route(other) == "third"
        assert await deciding.share()
        assert await sharing.look()

    play(redis_server, scene)
    assert route(one) == route(other) == "third"


def test_rules_that_cannot_be_used_here_are_told_once(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a version needs a variable that this host lacks, the rules stay in force and the problem gives the
    reason."""
    monkeypatch.setenv("ROUTE", "from-outside")
    one, other = [book_in(tmp_path / each, named("'${ROUTE}'")) for each in ("one", "other")]

    async def scene(store: BoundedRedis) -> None:
        await decide(one, RuleSharing(one, store, "one:1"), "'${ROUTE}'\n  , model: m")
        monkeypatch.delenv("ROUTE")
        looking = RuleSharing(other, store, "other:1")
        assert not await looking.look()
        assert not await looking.look()
        assert looking.problem is not None
        assert "which one:1 has in force, cannot be used here" in looking.problem
        assert "ROUTE is not set" in looking.problem

    play(redis_server, scene)
    assert "from-outside" not in "".join(redis_server.client.hgetall(KEY).values())


def test_what_redis_has_lost_is_written_again(redis_server: RedisServer, tmp_path: Path) -> None:
    """When Redis has lost the version in force, the gateway writes it again; when the files supersede it, the gateway
    deletes it."""
    one = book_in(tmp_path / "one")

    async def scene(store: BoundedRedis) -> None:
        sharing = RuleSharing(one, store, "one:1")
        await decide(one, sharing, "second")
        redis_server.client.delete(KEY)
        await sharing.look()
        assert redis_server.client.hlen(KEY) == 1
        sharing.superseded(one.base)
        await store.flush(timeout=120)
        assert redis_server.client.hlen(KEY) == 0

    play(redis_server, scene)


def test_few_sets_of_files_are_remembered(redis_server: RedisServer, tmp_path: Path) -> None:
    """At most eight sets of files are stored: an unreadable field is deleted first, then the oldest."""
    redis_server.client.hset(KEY, "strange", "no version")

    async def scene(store: BoundedRedis) -> None:
        for number in range(9):
            book = book_in(tmp_path / str(number), named(f"files-{number}"))
            await decide(book, RuleSharing(book, store, "one:1"), f"decided-{number}")

    play(redis_server, scene)
    reply = [json.loads(value.partition(" ")[2]) for value in redis_server.client.hgetall(KEY).values()]
    assert sorted(each["reason"] for each in reply) == [f"for decided-{number}" for number in range(1, 9)]


def test_what_lies_there_and_is_no_version_is_passed_over(redis_server: RedisServer, tmp_path: Path) -> None:
    """An unreadable value, such as one of another gateway version, is ignored."""
    one = book_in(tmp_path / "one")

    async def scene(store: BoundedRedis) -> None:
        infinite = (
            '12 {"number":1e999,"time":1,"author":"a","reason":"","source":"api","digest":"d","base":"b","files":[]}'
        )
        for spoilt in ("", "12 {", '12 {"number": 1}', "12 []", infinite, infinite.replace("1e999", "[" * 100_000)):
            redis_server.client.hset(KEY, one.base, spoilt)
            assert not await RuleSharing(one, store, "one:1").look()

    play(redis_server, scene)
    assert route(one) == "all"


def of_stranger(book: Rulebook, text: str, source: str = "api", author: str = "anna") -> str:
    """What somebody who can write to Redis writes there for this gateway."""
    (name,) = book.files
    version = Version(1, 1.0, author, "", source, digest_of([text.encode()]), book.base, (name,), (name,))
    return f"1 {json.dumps(asdict(version) | {'texts': {name: text}})}"


def test_who_writes_to_redis_reads_no_credential(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules from Redis change routes, and weights of engines with credentials; credentials go to no other address."""
    monkeypatch.setenv("OPENAI_KEY", "sk-secret")
    monkeypatch.setenv("ROUTE", "listed for the admin API")
    text = RULES.replace("health:", "api_key: '${OPENAI_KEY}', health:")
    one = book_in(tmp_path / "one", text)
    (tmp_path / "one" / "other").write_text("a secret")
    (tmp_path / "one" / "other").chmod(0o600)
    to_stranger = text.replace("http://127.0.0.1:1", "http://127.0.0.1:2")
    refused = {
        to_stranger: r"may not send \$\{OPENAI_KEY\} to this address: no rule file",
        RULES.replace("health:", "headers: {x: {file: other}}, health:"): r"may not send .*/one/other to",
        RULES.replace("health:", "headers: {x: {env: ROUTE}}, health:"): r"may not send \$\{ROUTE\} to",
        text.replace("engine: it}", "engine: it, model: '${ROUTE}'}"): r"may not send \$\{ROUTE\} to routes.model",
    }

    async def scene(store: BoundedRedis) -> None:
        for spoilt, why in refused.items():
            redis_server.client.hset(KEY, one.base, of_stranger(one, spoilt))
            sharing = RuleSharing(one, store, "one:1")
            assert not await sharing.look()
            assert sharing.problem is not None and re.search(why, sharing.problem), sharing.problem
        redis_server.client.hset(KEY, one.base, of_stranger(one, text.replace("name: all", "name: second")))
        assert await RuleSharing(one, store, "one:1").look()
        await one.activate({"rules.yaml": to_stranger}, "anna")  # who has an admin key may

    play(redis_server, scene)
    assert one.rules.engines["it"].api_key == "sk-secret"


@pytest.mark.parametrize(
    ("text", "source", "author"),
    [("second", "files", "anna"), ("second", "api", "the files on disk"), ("other", "api", "anna")],
)
def test_nobody_speaks_for_the_files_in_redis(
    redis_server: RedisServer, tmp_path: Path, text: str, source: str, author: str
) -> None:
    """The files are those on this disk; and a digest is that of the texts."""
    one = book_in(tmp_path / "one")

    async def scene(store: BoundedRedis) -> None:
        written = of_stranger(one, named("second"), source, author).replace("second", text)
        redis_server.client.hset(KEY, one.base, written)
        assert not await RuleSharing(one, store, "one:1").look()

    play(redis_server, scene)
    assert (route(one), len(one.versions())) == ("all", 1)


def test_gateways_with_a_secret_take_signed_rules_alone(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They share all that the admin API may put in force; what is not signed, or for other files, is ignored."""
    monkeypatch.setenv("OPENAI_KEY", "sk-secret")
    text = RULES.replace("health:", "api_key: '${OPENAI_KEY}', health:")
    elsewhere = text.replace("http://127.0.0.1:1", "http://127.0.0.1:2")
    one, other, third = [book_in(tmp_path / each, text) for each in ("one", "other", "third")]
    (secret := tmp_path / "secret").write_text("s" * 32 + "\n")
    secret.chmod(0o600)

    async def scene(store: BoundedRedis) -> None:
        sharing, looking = [
            RuleSharing(book, store, "x", RuleSignature(read_shared_secret(secret))) for book in (one, other)
        ]
        redis_server.client.hset(KEY, one.base, of_stranger(one, text.replace("name: all", "name: strange")))
        assert not await looking.look()
        await one.activate({"rules.yaml": elsewhere}, "anna")
        sharing.decided()
        assert await sharing.share()
        assert await looking.look()
        assert other.rules.engines["it"].endpoints[0].url == "http://127.0.0.1:2"
        with_another = RuleSharing(third, store, "x", RuleSignature(b"t" * 32))
        assert not await with_another.look()
        assert not await RuleSharing(third, store, "x").look()

    play(redis_server, scene)
    assert route(other) == route(third) == "all"
    assert "they are not signed with the secret of --shared-secret-file" in caplog.text


@pytest.mark.parametrize(("content", "mode", "why"), [("short", 0o600, "32 or more"), ("s" * 32, 0o644, "chmod o-rw")])
def test_a_weak_secret_is_refused(tmp_path: Path, content: str, mode: int, why: str) -> None:
    """It is long, and this gateway's; a missing file is named."""
    (tmp_path / "secret").write_text(content)
    (tmp_path / "secret").chmod(mode)
    with pytest.raises(ValueError, match=why):
        read_shared_secret(tmp_path / "secret")
    with pytest.raises(ValueError, match="none cannot be read: there is no such file"):
        read_shared_secret(tmp_path / "none")
