"""Conversations in a real Redis."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.specs import HistorySpec
from gateway.conversations.prompt_assembly import NOTHING
from gateway.conversations.store import Conversation, TurnRecord, conversation_id, list_conversations
from gateway.conversations.turns import Turn, num_dropped, written
from gateway.protocol.llm.canonical import Message
from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import StoreError
from tests.conversations.making import calls, result, said, system, turn, user
from tests.support.redis_server import RedisServer, cluster

WIDE = HistorySpec(100, 8000, 1_000_000)
PATIENCE = 120.0


def play(server: RedisServer, scene: Callable[[BoundedRedis], Awaitable[None]]) -> None:
    """Run a scene with a store of its own, as a worker has."""

    async def whole() -> None:
        store = BoundedRedis(read_address(server.url), deadline=PATIENCE, timeout=PATIENCE)
        try:
            await scene(store)
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


def exchange(question: str, answer: str, **more: object) -> TurnRecord:
    return TurnRecord((turn(user(question)), turn(said(answer))), **more)


async def write(talk: Conversation, what: TurnRecord, limits: HistorySpec = WIDE) -> str:
    return await talk.write(talk.writing(what, limits, 1_700_000_000))


def texts(turns: tuple[Turn, ...]) -> list[str]:
    return [each.message.text for each in turns]


def test_an_exchange_is_there_for_the_next(redis_server: RedisServer) -> None:
    """A worker reads what another one wrote: messages, tokens, engine and arm of the answer, and the system message."""
    answered = Turn(calls("c1", "clock", '{"in":"Paris"}'), 7, 1_700_000_001, False, "vllm", "blue")
    report = TurnRecord((turn(user("what time?"), 4), answered), (system("be kind"),))

    async def scene(store: BoundedRedis) -> None:
        assert await Conversation(store, "s", patience=PATIENCE).read() == NOTHING
        assert await write(Conversation(store, "s", patience=PATIENCE), report) == "kept"
        kept = await Conversation(store, "s", patience=PATIENCE).read()
        assert (kept.turns, kept.system, kept.revision, kept.num_dropped) == (report.turns, report.system, 1, 0)
        assert kept.sizes == tuple(len(written(each)) for each in report.turns)

    play(redis_server, scene)


def test_two_at_the_same_time_stand_one_after_the_other(redis_server: RedisServer) -> None:
    """Concurrent requests of one session that have read the same turns do not interleave, and both are stored."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        await write(talk, exchange("a?", "a."))
        read = await talk.read()
        both = [exchange(f"{letter}?", f"{letter}.", epoch=read.epoch) for letter in "bc"]
        assert await asyncio.gather(*[write(talk, each) for each in both]) == ["kept", "kept"]
        report = texts((await talk.read()).turns)
        assert report[:2] == ["a?", "a."]
        assert sorted((report[2:4], report[4:])) == [["b?", "b."], ["c?", "c."]]

    play(redis_server, scene)


def test_nobody_replaces_what_he_has_not_read(redis_server: RedisServer) -> None:
    """A replacement by a client is discarded if another exchange was stored after the client's request began."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        await write(talk, exchange("a?", "a."))
        read = await talk.read()
        other = exchange("z?", "z.", epoch=read.epoch, replaced_revision=read.revision)
        assert await write(talk, exchange("b?", "b.", epoch=read.epoch)) == "kept"
        assert await write(talk, other) == "changed"
        read = await talk.read()
        assert texts(read.turns) == ["a?", "a.", "b?", "b."]
        report = exchange("z?", "z.", epoch=read.epoch, replaced_revision=read.revision)
        assert await write(talk, report) == "kept"
        assert texts((await talk.read()).turns) == ["z?", "z."]

    play(redis_server, scene)


def test_what_is_deleted_stays_deleted(redis_server: RedisServer) -> None:
    """A request in flight while its conversation is deleted restores nothing of it."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        await write(talk, exchange("a?", "a."))
        read = await talk.read()
        assert await talk.delete()
        assert await write(talk, exchange("b?", "b.", epoch=read.epoch)) == "gone"
        assert await talk.read() == NOTHING
        assert not await talk.delete()
        await write(talk, exchange("c?", "c."))  # a new conversation with the same name
        assert await write(talk, exchange("b?", "b.", epoch=read.epoch)) == "gone"

    play(redis_server, scene)


def test_tenants_have_their_own(redis_server: RedisServer) -> None:
    """Equal session names of two tenants are two conversations, also if tenant and session concatenate to the same
    text."""
    ids = {conversation_id(*who) for who in [("s", ""), ("s", "a"), ("s", "b"), ("as", ""), ("a", "s"), ("", "as")]}
    assert len(ids) == 6

    async def scene(store: BoundedRedis) -> None:
        await write(Conversation(store, "s", "a", patience=PATIENCE), exchange("a?", "a."))
        assert await Conversation(store, "s", "b", patience=PATIENCE).read() == NOTHING

    play(redis_server, scene)


def test_a_conversation_is_forgotten(redis_server: RedisServer) -> None:
    """A conversation expires as a whole, `ttl` after its last exchange."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        await write(talk, exchange("a?", "a."), HistorySpec(ttl=100))
        await write(talk, exchange("b?", "b."), HistorySpec(ttl=50))
        client = redis_server.client
        assert {49_000 < int(client.pttl(key)) <= 50_000 for key in client.keys("*")} == {True}
        await write(talk, exchange("c?", "c."), HistorySpec(ttl=0.05))
        while await talk.read() != NOTHING:
            await asyncio.sleep(0.01)
        assert client.keys("pointsman:1:talk:*") == []

    play(redis_server, scene)


def test_a_redis_without_memory_may_drop_half_of_it(redis_server: RedisServer) -> None:
    """If Redis has evicted the turns, or the counts, the conversation restarts with correct counts."""

    async def scene(store: BoundedRedis) -> None:
        client = redis_server.client
        talk = Conversation(store, "s", patience=PATIENCE)
        for suffix in ("}", "}:turns"):
            await write(talk, exchange("a?", "a."))
            (key,) = [key for key in client.keys("*") if key.endswith(suffix)]
            client.delete(key)
            await write(talk, exchange("b?", "b."))
            kept = await talk.read()
            assert texts(kept.turns) == ["b?", "b."]
            whole = await talk.whole()
            assert whole is not None and whole.about["bytes"] == sum(kept.sizes)
            assert whole.about["tokens"] == kept.tokens
            await talk.delete()

    play(redis_server, scene)


def test_what_is_foreign_is_an_error(redis_server: RedisServer) -> None:
    """A key of another type, or turns in a foreign format, are treated as a Redis that does not answer."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        await write(talk, exchange("a?", "a."))
        client = redis_server.client
        (turns,) = [key for key in client.keys("*") if key.endswith(":turns")]
        client.lset(turns, 0, "{}")
        with pytest.raises(StoreError, match="no gateway has written"):
            await talk.read()
        client.set(turns, "text")
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await talk.read()

    play(redis_server, scene)


def test_all_are_listed(redis_server: RedisServer) -> None:
    """A list of conversations comes in pages, with the facts that operators need; other keys are left out."""

    async def scene(store: BoundedRedis) -> None:
        redis_server.client.set("pointsman:1:session:{x}", "1")
        for number in range(25):
            await write(Conversation(store, f"s{number}", "acme", patience=PATIENCE), exchange("a?", "a."))
        found, cursor, pages = [], 0, 0
        while pages == 0 or cursor:
            page, cursor = await list_conversations(store, cursor, 10, patience=PATIENCE)
            found += page
            pages += 1
        assert {each["session"] for each in found} == {f"s{number}" for number in range(25)}
        assert pages > 1
        assert {(each["tenant"], each["created"], each["revision"]) for each in found} == {("acme", 1_700_000_000, 1)}

    play(redis_server, scene)


def test_a_cluster_keeps_them_too(tmp_path: Path) -> None:
    """Both keys of a conversation are on the same server; only the list of all conversations is not available."""
    with cluster(tmp_path) as servers:

        async def scene() -> None:
            url = f"redis+cluster://127.0.0.1:{servers[0].port}"
            store = BoundedRedis(read_address(url), deadline=PATIENCE, timeout=PATIENCE)
            try:
                for number in range(8):
                    talk = Conversation(store, f"s{number}", patience=PATIENCE)
                    assert await write(talk, exchange("a?", "a.")) == "kept"
                    assert texts((await talk.read()).turns) == ["a?", "a."]
                    assert await talk.delete()
                with pytest.raises(StoreError, match="cannot be listed"):
                    await list_conversations(store, 0, 10, patience=PATIENCE)
            finally:
                await store.close()

        asyncio.run(asyncio.wait_for(scene(), 120))


@pytest.mark.parametrize(
    "fields, turns",
    [
        ({"session": b"\xff\xfe", "revision": 1}, [b'{"role":"user"}']),
        ({"session": "s", "bytes": "many"}, []),
        ({"session": "s", "system": "{no json"}, []),
        ({"session": "s"}, [b"{no json"]),
        ({"session": "s"}, [b"[]"]),
        ({"session": "s"}, [b"5"]),
    ],
)
def test_what_no_gateway_has_written_is_told_so(
    redis_server: RedisServer, fields: dict[str, str], turns: list[bytes]
) -> None:
    """Reading a malformed conversation raises an error; the list of all conversations still has the others."""

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "broken", patience=PATIENCE)
        redis_server.client.hset(talk.key, mapping={"epoch": "e", **fields})
        if turns:
            redis_server.client.rpush(f"{talk.key}:turns", *turns)
        other = Conversation(store, "well", patience=PATIENCE)
        assert await write(other, exchange("a?", "a.")) == "kept"
        with pytest.raises(StoreError, match="holds what no gateway has written"):
            await talk.whole()
        page, _ = await list_conversations(store, 0, 10, patience=PATIENCE)
        assert "well" in [each["session"] for each in page]

    play(redis_server, scene)


MESSAGES = st.lists(
    st.sampled_from([user("?"), user("what?" * 5), said("."), said("so" * 20), calls("c"), result("c")]),
    min_size=1,
    max_size=4,
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(MESSAGES, st.integers(0, 40)), min_size=1, max_size=6),
    st.builds(HistorySpec, st.integers(1, 8), st.integers(1, 80), st.integers(1, 900)),
    st.sampled_from([(), (system("be kind"),)]),
)
def test_redis_trims_as_python_does(
    redis_process: RedisServer,
    exchanges: list[tuple[list[Message], int]],
    limits: HistorySpec,
    before: tuple[Message, ...],
) -> None:
    """The script drops as many turns as `num_dropped`, after each write, and counts the rest."""
    redis_process.client.flushall()

    async def scene(store: BoundedRedis) -> None:
        talk = Conversation(store, "s", patience=PATIENCE)
        expected: list[Turn] = []
        for messages, tokens in exchanges:
            report = tuple(turn(message, tokens) for message in messages)
            assert await write(talk, TurnRecord(report, before), limits) == "kept"
            kept = await talk.read()
            expected += report
            sizes = [len(written(each)) for each in expected]
            system_bytes = len(b'[{"role":"system","content":"be kind"}]') if before else 0
            expected = expected[num_dropped(expected, sizes, system_bytes, limits) :]
            assert list(kept.turns) == expected
            whole = await talk.whole()
            assert whole is not None
            assert (whole.about["bytes"], whole.about["tokens"]) == (sum(kept.sizes), kept.tokens)
            assert whole.about["dropped"] == kept.num_dropped

    play(redis_process, scene)
