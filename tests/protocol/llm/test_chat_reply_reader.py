"""Reading chat completion replies of engines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.chat_reply import ChatReplyReader, ChatReplyWriter
from tests.protocol.llm.chat_streams import BEGUN, STREAMS


def read(pieces: list[bytes]) -> list[Event]:
    reader = ChatReplyReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end() + reader.end()


@pytest.mark.parametrize("stream, events", STREAMS.values(), ids=STREAMS)
def test_streams_of_engines_are_read(stream: str, events: list[Event]) -> None:
    """The reader understands the recorded streams of every server; a stream that was cut off has no Finished event."""
    assert read([stream.encode()]) == events


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(STREAMS.values())), st.lists(st.integers(0, 900), max_size=8).map(sorted))
def test_a_stream_is_read_however_it_is_cut(case: tuple[str, list[Event]], cuts: list[int]) -> None:
    """The events do not depend on how the stream is split into chunks."""
    data = case[0].encode()
    assert read([data[at:to] for at, to in zip([0, *cuts], [*cuts, len(data)], strict=True)]) == case[1]


USAGE = '"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}'


def whole(choices: str) -> bytes:
    return f'{{"id":"c","object":"chat.completion","created":9,"model":"m","choices":[{choices}],{USAGE}}}'.encode()


WHOLE: dict[str, tuple[int, bytes, list[Event]]] = {
    "a text": (
        200,
        whole('{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}'),
        [BEGUN, TextDelta("a"), Finished("stop"), TokenUsage(3, 2, 1)],
    ),
    "thoughts, calls without ids or numbers": (
        200,
        whole(
            '{"message":{"content":null,"reasoning":"x","tool_calls":[{"function":{"name":"f","arguments":"{}"}},'
            '{"function":{"name":"f","arguments":"{}"}}]},"finish_reason":"tool_calls"}'
        ),
        [
            *(BEGUN, ReasoningDelta("x"), ToolCallDelta(0, "", "f", "{}"), ToolCallDelta(1, "", "f", "{}")),
            *(Finished("tool_calls"), TokenUsage(3, 2, 1)),
        ],
    ),
    "no reason": (
        200,
        whole('{"message":{"content":"a"},"finish_reason":null},{"index":1,"message":null}'),
        [BEGUN, TextDelta("a"), Finished("stop"), Finished("stop", 1), TokenUsage(3, 2, 1)],
    ),
    "an error": (429, b'{"error":{"message":"slow","type":"x","code":"rate"}}', [EngineFailed("slow", 429, "rate")]),
    "an error that is no JSON": (502, b"Bad Gateway\n", [EngineFailed("Bad Gateway", 502)]),
    "an error with status 200": (200, b'{"error":{"message":"no","code":"400"}}', [EngineFailed("no", 400, "400")]),
    "FastAPI's": (200, b'{"detail":"no"}', [EngineFailed("no", 500)]),
}


@pytest.mark.parametrize("status, body, events", WHOLE.values(), ids=WHOLE)
def test_whole_replies_of_engines_are_read(status: int, body: bytes, events: list[Event]) -> None:
    """A whole reply yields the same events as a stream."""
    assert ChatReplyReader().whole(status, body) == events


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}", b'{"choices":{}}', b'{"choices":[1]}'])
def test_what_is_no_reply_is_the_engines_fault(body: bytes) -> None:
    """A success reply that cannot be parsed is an upstream protocol error."""
    with pytest.raises(GatewayError) as failure:
        ChatReplyReader().whole(200, body)
    assert failure.value.kind is ErrorKind.UPSTREAM_PROTOCOL


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "stop", "a"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    *(
                        "choices",
                        "index",
                        "delta",
                        "message",
                        "content",
                        "refusal",
                        "reasoning",
                        "finish_reason",
                        "usage",
                    ),
                    *(
                        "tool_calls",
                        "function",
                        "name",
                        "arguments",
                        "id",
                        "type",
                        "text",
                        "logprobs",
                        "error",
                        "thinking",
                    ),
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(anything, anything)
def test_whatever_an_engine_sends_is_read_or_is_its_fault(written: Any, choice: Any) -> None:
    """Any engine reply is either read or raises an upstream protocol error."""
    for body in (written, {"choices": [choice]}, {"choices": [{"index": 0, "delta": choice, "message": choice}]}):
        data = json.dumps(body).encode()
        for use in (
            lambda data=data: ChatReplyReader().whole(200, data),
            lambda data=data: read([b"data: %b\n\n" % data]),
        ):
            try:
                ChatReplyWriter(Generation("m"), id="x", created=1, model="m").feed(use())
            except GatewayError as error:
                assert error.kind is ErrorKind.UPSTREAM_PROTOCOL
