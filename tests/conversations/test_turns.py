"""Turns in their stored form, and in the admin API's export."""

from math import ceil

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.specs import HistorySpec
from gateway.conversations.turns import (
    Turn,
    is_within,
    num_dropped,
    openai_message,
    read,
    written,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import Media, Message, Reasoning, Text, ToolCall
from gateway.protocol.llm.token_estimate import estimated_tokens
from tests.conversations.making import calls, result, said, turn, user

MESSAGES = [
    user("hello"),
    Message("user"),
    user('"tokens":5, "role":"user" \u00e4\u20ac\U0001f600'),
    said("hi"),
    result("c1", "noon"),
    calls("c1", "clock", '{"in":"Paris"}'),
    Message("assistant", (Text("let me see"),), (ToolCall("c1", "clock", ""), ToolCall("c2", "clock", "{}"))),
    Message("user", (Text("what is it?"), Media("image", "data:image/png;base64,AAAA", {"detail": "low"}))),
    Message("user", (Media("audio", "data:audio/wav;base64,AAAA", {"format": "wav"}),)),
    Message("user", (Media("file", "data:application/pdf;base64,AAAA", {"filename": "a.pdf"}),)),
    Message("user", (Text("a"), Text("b")), (), "", "ann"),
]


@pytest.mark.parametrize("message", MESSAGES)
@pytest.mark.parametrize(
    "about", [{}, {"is_estimated": False, "engine": "vllm", "arm": "blue"}, {"is_cut": True, "created": 7}]
)
def test_a_turn_is_read_as_it_was_written(message: Message, about: dict[str, object]) -> None:
    """Any message is read back with all properties of its turn."""
    turn = Turn(message, 12, **about)  # type: ignore[arg-type]
    assert read(written(turn)) == turn


def test_a_turn_is_an_openai_message_with_fields_of_ours() -> None:
    """Role and tokens come first, where the Redis script finds them; an export leaves out the gateway's own fields."""
    turn = Turn(said("hi"), 1, 1_700_000_000, False, "vllm", "blue", True)
    assert written(turn) == (
        b'{"role":"assistant","tokens":1,"created":1700000000,"engine":"vllm","arm":"blue","cut":true,"content":"hi"}'
    )
    assert openai_message(orjson.loads(written(turn))) == {"role": "assistant", "content": "hi"}
    assert written(Turn(user("a"), 1)).startswith(b'{"role":"user","tokens":1,"estimated":true,')


def test_thoughts_are_not_kept() -> None:
    """The stored form of a turn has no reasoning."""
    turn = Turn(Message("assistant", (Reasoning("hm"), Text("hi"))), 1)
    assert read(written(turn)).message == said("hi")


def test_media_by_an_address_have_no_form() -> None:
    """A file that OpenAI's messages cannot represent is refused by name."""
    with pytest.raises(GatewayError, match="file by its address") as refused:
        written(Turn(Message("user", (Media("file", "https://a/b.pdf"),)), 1))
    assert refused.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    "message, tokens",
    [
        (user(""), 0),
        (user("four"), 1),
        (user("\u20ac\u20ac"), 2),
        (calls("id", "clock", "{}"), 2),
        (Message("user", (Media("image", "data:image/png;base64," + "A" * 9999),)), 1000),
    ],
)
def test_tokens_are_estimated(message: Message, tokens: int) -> None:
    """Four bytes of UTF-8 are a token; a picture is a thousand, however long its bytes are."""
    assert estimated_tokens(message) == tokens


NO_LIMIT = 1 << 40


def sized(turns: list[Turn], size: int = 10) -> list[int]:
    return [size] * len(turns)


@st.composite
def conversations(draw: st.DrawFn) -> list[Turn]:
    """Realistic exchanges: questions, calls with their results, answers; token counts as engines report them."""
    turns: list[Turn] = []
    for number in range(draw(st.integers(0, 6))):
        messages: list[Message] = [user("?")] * draw(st.integers(1, 2))
        for call in range(draw(st.integers(0, 2))):
            messages += [calls(f"c{number}-{call}"), result(f"c{number}-{call}")]
        messages.append(said("."))
        turns += [turn(message, draw(st.integers(0, 40))) for message in messages]
    return turns


LIMITS = st.builds(HistorySpec, st.integers(1, 30), st.integers(1, 200), st.integers(1, 400))


@settings(max_examples=300, deadline=None)
@given(conversations(), LIMITS, st.integers(0, 100), st.data())
def test_trimming(turns: list[Turn], limits: HistorySpec, system_bytes: int, data: st.DataObject) -> None:
    """The remaining turns are within the limits and begin with a question; no result remains without its call; and one
    exchange more would exceed the limits."""
    sizes = [data.draw(st.integers(1, 60)) for _ in turns]
    dropped = num_dropped(turns, sizes, system_bytes, limits)
    left, left_sizes = turns[dropped:], sizes[dropped:]
    if left:
        assert left[0].message.role == "user"
        assert len(left) <= limits.max_turns
        assert sum(each.tokens for each in left) + ceil(system_bytes / 4) <= limits.max_tokens
        assert sum(left_sizes) + system_bytes <= limits.max_bytes
    requested = {call.id for each in left for call in each.message.tool_calls}
    answered = {each.message.tool_call_id for each in left if each.message.role == "tool"}
    assert answered <= requested
    if dropped:
        before = max(at for at in range(dropped) if turns[at].begins_exchange)
        tokens = sum(each.tokens for each in turns[before:])
        assert not is_within(limits, len(turns) - before, tokens, sum(sizes[before:]), system_bytes)


def test_nothing_is_dropped_within_the_limits() -> None:
    """A conversation at its limits loses nothing."""
    turns = [turn(user("a"), 5), turn(said("b"), 5)]
    assert num_dropped(turns, sized(turns), 0, HistorySpec(2, 10, 20)) == 0


def test_the_oldest_exchange_goes_first() -> None:
    """The question and the answer of an exchange are dropped together."""
    turns = [turn(user("a"), 5), turn(said("b"), 5), turn(user("c"), 5), turn(said("d"), 5)]
    assert num_dropped(turns, sized(turns), 0, HistorySpec(3, NO_LIMIT, NO_LIMIT)) == 2
    assert num_dropped(turns, sized(turns), 0, HistorySpec(100, 19, NO_LIMIT)) == 2
    assert num_dropped(turns, sized(turns), 0, HistorySpec(100, NO_LIMIT, 39)) == 2


def test_a_system_message_counts() -> None:
    """The system message stays and takes its share of the limits: 4 bytes of it are a token."""
    turns = [turn(user("a"), 5), turn(said("b"), 5)]
    assert num_dropped(turns, sized(turns), 4, HistorySpec(10, 10, NO_LIMIT)) == 2
    assert num_dropped(turns, sized(turns), 4, HistorySpec(10, 11, NO_LIMIT)) == 0


def test_what_is_too_long_by_itself_is_not_kept() -> None:
    """If a single exchange exceeds the limits, no turn remains."""
    turns = [turn(user("a"), 5), turn(said("b"), 5), turn(user("c"), 100), turn(said("d"), 5)]
    assert num_dropped(turns, sized(turns), 0, HistorySpec(100, 50, NO_LIMIT)) == 4
