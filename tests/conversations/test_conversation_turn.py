"""One request of a conversation: prompt, reply, stored turns."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gateway.config.specs import HistorySpec
from gateway.conversations.conversation_turn import ConversationTurn
from gateway.conversations.store import Conversation
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Generation,
    Message,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.redis.address import read_address
from gateway.redis.bounded_client import BoundedRedis
from tests.conversations.making import said, system, user
from tests.support.redis_server import RedisServer

Begin = Callable[..., Conversation]


def play(server: RedisServer, scene: Callable[[Conversation], Awaitable[None]]) -> None:
    async def whole() -> None:
        store = BoundedRedis(read_address(server.url), deadline=120.0, timeout=120.0)
        try:
            await scene(Conversation(store, "s", patience=120.0))
        finally:
            await store.close()

    asyncio.run(asyncio.wait_for(whole(), 120))


async def talk(kept_in: Conversation, *messages: Message, events: list[Event], **spec: Any) -> ConversationTurn:
    """A request of these messages, and its reply as these events."""
    one = ConversationTurn(kept_in, HistorySpec(**spec))
    await one.begin(Generation("m", messages=messages))
    one.answer.record(events)
    assert await one.store("engine", "arm")
    return one


def counts(turns: tuple[Any, ...]) -> list[tuple[str, int, bool]]:
    return [(turn.message.role, turn.tokens, turn.is_estimated) for turn in turns]


def test_tokens_are_the_engines(redis_server: RedisServer) -> None:
    """An engine counts prompts as a whole: a question's tokens are those of the prompt less those of the turns before
    it."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a"), events=[TextDelta("b"), TokenUsage(10, 3)])
        await talk(kept_in, user("c"), user("d" * 36), events=[TextDelta("e"), TokenUsage(33, 4)])
        assert counts((await kept_in.read()).turns) == [
            ("user", 10, False),
            ("assistant", 3, False),
            ("user", 2, False),
            ("user", 18, False),
            ("assistant", 4, False),
        ]

    play(redis_server, scene)


@pytest.mark.parametrize("used", [[], [TokenUsage()], [TokenUsage(prompt=2)]])
def test_else_they_are_estimated(redis_server: RedisServer, used: list[Event]) -> None:
    """If the engine counts nothing, or less than what is stored, four bytes count as a token, and turns are marked as
    estimated."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a" * 40), events=[TextDelta("b" * 8), *used])
        assert counts((await kept_in.read()).turns)[1] == ("assistant", 2, True)
        await talk(kept_in, user("c" * 4), events=[TextDelta("d" * 8), *used])
        assert counts((await kept_in.read()).turns)[2:] == [("user", 1, True), ("assistant", 2, True)]

    play(redis_server, scene)


def test_what_one_request_says_twice_is_one_answer(redis_server: RedisServer) -> None:
    """The first of several choices is kept; its tool calls are assembled from their pieces."""

    async def scene(kept_in: Conversation) -> None:
        one = ConversationTurn(kept_in, HistorySpec())
        await one.begin(Generation("m", messages=(user("a"),), options={"n": 2}))
        one.answer.record([TextDelta("b"), TextDelta("x", 1), ToolCallDelta(0, "c1", "clock", '{"in"')])
        one.answer.record([ToolCallDelta(0, "c2", "clock", "{}", 1), ToolCallDelta(0, arguments=':"Paris"}')])
        assert await one.store("engine", "")
        answered = (await kept_in.read()).turns[-1]
        assert answered.message.text == "b"
        assert [(call.id, call.arguments) for call in answered.message.tool_calls] == [("c1", '{"in":"Paris"}')]
        assert (answered.engine, answered.arm, answered.is_estimated) == ("engine", "", True)

    play(redis_server, scene)


def test_an_answer_that_the_client_began(redis_server: RedisServer) -> None:
    """The client's beginning and the engine's continuation are one turn."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a"), said("{"), events=[TextDelta("}")])
        assert [turn.message for turn in (await kept_in.read()).turns] == [user("a"), said("{}")]

    play(redis_server, scene)


@pytest.mark.parametrize("events", [[], [TextDelta("")], [TextDelta("b"), EngineFailed("no")]])
def test_what_is_no_answer_is_not_kept(redis_server: RedisServer, events: list[Event]) -> None:
    """A failed or empty reply is not stored, and neither is its question: the client sends it again."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a"), events=events)
        assert (await kept_in.read()).turns == ()

    play(redis_server, scene)


def test_limits_that_were_lowered_hold_at_once(redis_server: RedisServer) -> None:
    """With lower limits in the rules, prompts have fewer turns of conversations that are stored already."""

    async def scene(kept_in: Conversation) -> None:
        for letter in "abc":
            await talk(kept_in, user(letter), events=[TextDelta(".")])
        one = ConversationTurn(kept_in, HistorySpec(max_turns=2))
        requested = await one.begin(Generation("m", messages=(user("d"),)))
        assert [message.text for message in requested.messages] == ["c", ".", "d"]

    play(redis_server, scene)


@pytest.mark.parametrize(
    "limit, message",
    [({"max_turns": 3}, user("b")), ({"max_tokens": 20}, user("b" * 80)), ({"max_bytes": 400}, user("b" * 300))],
)
def test_a_conversation_that_is_full(redis_server: RedisServer, limit: dict[str, int], message: Message) -> None:
    """With `on_overflow: refuse` no turns are dropped, and a request that does not fit is refused before it reaches an
    engine."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a"), events=[TextDelta(".")], on_overflow="refuse", **limit)
        one = ConversationTurn(kept_in, HistorySpec(on_overflow="refuse", **limit))  # type: ignore[arg-type]
        with pytest.raises(GatewayError, match="the conversation is full") as refused:
            await one.begin(Generation("m", messages=(message,)))
        assert refused.value.kind is ErrorKind.CONVERSATION_FULL

    play(redis_server, scene)


def test_a_system_message_of_each_request(redis_server: RedisServer) -> None:
    """With `system: request` no system message is stored, and one stored under earlier rules is not sent."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, system("be kind"), user("a"), events=[TextDelta(".")])
        one = ConversationTurn(kept_in, HistorySpec(system="request"))
        requested = await one.begin(Generation("m", messages=(user("b"),)))
        assert [message.role for message in requested.messages] == ["user", "assistant", "user"]

    play(redis_server, scene)


def test_what_no_conversation_can_keep() -> None:
    """Token ids are refused; the error names the alternative."""
    with pytest.raises(GatewayError, match="token ids cannot be kept") as refused:
        asyncio.run(ConversationTurn(None, HistorySpec()).begin(Generation("m", prompt=[1, 2])))
    assert refused.value.kind is ErrorKind.UNSUPPORTED


def test_a_text_whose_beginning_is_missing_is_not_kept(redis_server: RedisServer) -> None:
    """While the conversation cannot be read, the new part of a text prompt is unknown, so nothing is stored; with
    messages, all after the last answer is new."""

    async def scene(kept_in: Conversation) -> None:
        redis_server.client.set(kept_in.key, "of another type")
        for requested, is_kept in (
            (Generation("m", prompt="a"), False),
            (Generation("m", messages=(user("a"),)), True),
        ):
            one = ConversationTurn(kept_in, HistorySpec(prompts="text"))
            await one.begin(requested)
            assert one.history_status == "missing"
            one.answer.record([TextDelta("b")])
            redis_server.client.flushall()
            assert await one.store("engine", "") is is_kept
            redis_server.client.flushall()
            redis_server.client.set(kept_in.key, "of another type")

    play(redis_server, scene)


def test_a_required_conversation_that_redis_has_evicted_is_an_error(redis_server: RedisServer) -> None:
    """Where values of others fill Redis and it evicts a conversation that is required, the next request is refused
    instead of answered without its history, until the conversation is deleted; where it is not required, the engine
    gets the new message alone."""

    async def scene(kept_in: Conversation) -> None:
        for required in (True, False):
            await talk(kept_in, user("a"), events=[TextDelta("b")], required=required)
            if required:
                await wait_for_mark(redis_server)
            evict(redis_server, kept_in.key)
            one = ConversationTurn(kept_in, HistorySpec(required=required))
            if required:
                with pytest.raises(GatewayError, match="Redis has lost this conversation") as raised:
                    await one.begin(Generation("m", messages=(user("c"),)))
                assert raised.value.kind is ErrorKind.HISTORY_MISSING
                assert await kept_in.delete()
                await talk(kept_in, user("c"), events=[TextDelta("d")], required=True)
                assert await kept_in.delete()
            else:
                assert len((await one.begin(Generation("m", messages=(user("c"),)))).messages or ()) == 1

    play(redis_server, scene)


@pytest.mark.parametrize("suffix", ["", ":turns"])
def test_half_of_a_required_conversation_is_not_answered(redis_server: RedisServer, suffix: str) -> None:
    """Redis evicts single keys: a conversation without its turns, or without its counts, is lost."""

    async def scene(kept_in: Conversation) -> None:
        await talk(kept_in, user("a"), events=[TextDelta("b")], required=True)
        await wait_for_mark(redis_server)
        assert redis_server.client.delete(kept_in.key + suffix) == 1
        with pytest.raises(GatewayError, match="Redis has lost"):
            await ConversationTurn(kept_in, HistorySpec(required=True)).begin(Generation("m", messages=(user("c"),)))

    play(redis_server, scene)


def test_a_first_answer_that_was_cut_is_required_too(redis_server: RedisServer) -> None:
    """A conversation whose first client left in the middle is known, and lost where Redis evicts it."""

    async def scene(kept_in: Conversation) -> None:
        one = ConversationTurn(kept_in, HistorySpec(required=True))
        await one.begin(Generation("m", messages=(user("a"),)))
        one.answer.record([TextDelta("b")])
        one.store_partial("engine", "arm")
        await wait_for_mark(redis_server)
        assert redis_server.client.delete(kept_in.key, kept_in.key + ":turns") == 2
        with pytest.raises(GatewayError, match="Redis has lost"):
            await ConversationTurn(kept_in, HistorySpec(required=True)).begin(Generation("m", messages=(user("c"),)))

    play(redis_server, scene)


async def wait_for_mark(server: RedisServer) -> None:
    while not server.client.exists("pointsman:1:talks"):
        await asyncio.sleep(0.01)


def evict(server: RedisServer, key: str) -> None:
    """Fill Redis with values that live longer, as blocks of a KV store do, until it evicts the key."""
    client = server.client
    before = client.config_get("maxmemory*")
    used = client.info("memory")["used_memory"]
    client.config_set("maxmemory-policy", "volatile-ttl")
    client.config_set("maxmemory", used + 4_000_000)
    number = 0
    while client.exists(key):
        client.set(f"pointsman:1:kv:{number}", bytes(100_000), ex=10**7)
        number += 1
    client.delete(*client.keys("pointsman:1:kv:*"))
    for name in ("maxmemory", "maxmemory-policy"):
        client.config_set(name, before[name])
