"""Counting tokens from the bytes of replies in every API, whole or streamed, split anywhere."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.llm.canonical import TokenUsage
from gateway.protocol.llm.usage import ReplyUsage, StreamUsage, read_usage, whole_usage

USAGES = {
    "OpenAI, chat": (
        b"""{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4,
        "audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":6,"accepted_prediction_tokens":0}}""",
        TokenUsage(19, 10, 4, 6),
    ),
    "vLLM": (
        b'{"prompt_tokens":9,"total_tokens":13,"completion_tokens":4,"prompt_tokens_details":null}',
        TokenUsage(9, 4),
    ),
    "SGLang": (
        b'{"prompt_tokens":9,"total_tokens":13,"completion_tokens":4,"prompt_tokens_details":null,"reasoning_tokens":3}',
        TokenUsage(9, 4, 0, 3),
    ),
    "DeepSeek": (
        b'{"prompt_tokens":9,"completion_tokens":4,"prompt_cache_hit_tokens":8,"prompt_cache_miss_tokens":1}',
        TokenUsage(9, 4, 8),
    ),
    "embeddings": (b'{"prompt_tokens":8,"total_tokens":8}', TokenUsage(8)),
    "responses": (
        b"""{"input_tokens":36,"input_tokens_details":{"cached_tokens":30},"output_tokens":87,
        "output_tokens_details":{"reasoning_tokens":80},"total_tokens":123}""",
        TokenUsage(36, 87, 30, 80),
    ),
    "Anthropic": (
        b"""{"input_tokens":5,"cache_creation_input_tokens":100,"cache_read_input_tokens":1000,"output_tokens":7,
        "service_tier":"standard","cache_creation":{"ephemeral_5m_input_tokens":100}}""",
        TokenUsage(1105, 7, 1000),
    ),
    "Anthropic, nothing cached": (
        b'{"input_tokens":5,"cache_read_input_tokens":0,"output_tokens":7}',
        TokenUsage(5, 7),
    ),
}


@pytest.mark.parametrize("usage, used", USAGES.values(), ids=USAGES)
def test_usage_is_read_by_every_engines_names(usage: bytes, used: TokenUsage) -> None:
    """Usage is read under every engine's field names; the prompt count includes cached tokens."""
    assert read_usage(orjson.loads(usage)) == used


@pytest.mark.parametrize("usage", [None, [], "9", {}, {"prompt_tokens": None}, {"prompt_tokens": "9"}, {"seconds": 5}])
def test_what_tells_no_tokens_is_no_usage(usage: Any) -> None:
    """A usage value without token counts yields None."""
    assert read_usage(usage) is None


STREAMS = {
    "OpenAI, with usage at the end": (
        b"""data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":null}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}

data: [DONE]

""",
        4,
        TokenUsage(3, 2),
    ),
    "OpenAI, with usage in every chunk": (
        b"""data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}

data: {"choices":[{"delta":{"content":"b"}}],"usage":{"prompt_tokens":3,"completion_tokens":2}}

""",
        2,
        TokenUsage(3, 2),
    ),
    "none told": (b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n', 2, None),
    "lines end with CR LF, and pings come": (
        b': ping\r\n\r\ndata: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\r\n\r\n',
        1,
        TokenUsage(3, 2),
    ),
    "a text that tells tokens": (
        rb'data: {"choices":[{"delta":{"content":"\ndata: {\"usage\":{\"prompt_tokens\":9}}"}}]}' + b"\n\n"
        rb'data: {"choices":[{"delta":{"content":"max_tokens"}}]}' + b"\n\n",
        2,
        None,
    ),
    "Anthropic": (
        b"""event: message_start
data: {"type":"message_start","message":{"id":"m","content":[],"usage":{"input_tokens":25,"cache_read_input_tokens":4,"output_tokens":1}}}

event: ping
data: {"type": "ping"}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

""",  # noqa: E501
        4,
        TokenUsage(29, 15, 4),
    ),
    "responses": (
        b"""event: response.created
data: {"type":"response.created","response":{"id":"r","usage":null,"max_output_tokens":null}}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","usage":{"input_tokens":7,"output_tokens":4,"output_tokens_details":{"reasoning_tokens":1}}}}

""",  # noqa: E501
        2,
        TokenUsage(7, 4, 0, 1),
    ),
    "what is no JSON": (b'data: {"a_tokens":\n\ndata: [1]\n\ndata:"x_tokens"\n\n', 3, None),
}


@pytest.mark.parametrize("stream, num_events, used", STREAMS.values(), ids=STREAMS)
def test_a_stream_tells_its_usage(stream: bytes, num_events: int, used: TokenUsage | None) -> None:
    """The usage of a stream is the same when read at once or byte by byte."""
    at_once, slow = StreamUsage(), StreamUsage()
    at_once.scan(stream)
    for at in range(len(stream)):
        slow.scan(stream[at : at + 1])
    assert (at_once.num_events, at_once.used) == (num_events, used)
    assert (slow.num_events, slow.used) == (num_events, used)


def test_a_line_that_never_ends_is_not_kept() -> None:
    """An overlong line is discarded, and usage in later lines is read."""
    scan = StreamUsage()
    scan.scan(b"data: " + b"x" * 5_000_000)
    scan.scan(b'"usage":{"prompt_tokens":9}}\n\n')
    scan.scan(b'data: {"usage":{"prompt_tokens":3}}\n\n')
    assert scan.used == TokenUsage(3)
    assert scan.num_events == 1


WHOLE = {
    "OpenAI": (
        b'{"id":"c","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":2},"x":{}}',
        TokenUsage(3, 2),
    ),
    "written over lines": (
        b'{\n "usage" : {\n  "prompt_tokens": 3,\n  "prompt_tokens_details": {\n   "cached_tokens": 1\n  }\n }\n}',
        TokenUsage(3, 0, 1),
    ),
    "before the data": (b'{"usage":{"prompt_tokens":3},"data":[' + b"0.5," * 3000 + b"0.5]}", TokenUsage(3)),
    "behind the data": (
        b'{"data":[' + b"0.5," * 3000 + b'0.5],"usage":{"prompt_tokens":3,"total_tokens":3}}',
        TokenUsage(3),
    ),
    "a text that tells tokens": (
        rb'{"content":"\"usage\":{\"prompt_tokens\":9}","usage":{"prompt_tokens":3}}',
        TokenUsage(3),
    ),
    "a tool's input that tells tokens": (
        b'{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":9}}}],"usage":{"input_tokens":3}}',
        TokenUsage(3),
    ),
    "another object of this name behind it": (b'{"usage":{"prompt_tokens":3},"a":{"usage":{"x":1}}}', TokenUsage(3)),
    "null": (b'{"usage":null}', None),
    "none": (b'{"error":{"message":"x"}}', None),
    "no usage, as it has no end": (b'{"usage":{' + b'"a":1,' * 1000 + b'"b":{', None),
}


@pytest.mark.parametrize("body, used", WHOLE.values(), ids=WHOLE)
def test_a_whole_reply_tells_its_usage(body: bytes, used: TokenUsage | None) -> None:
    """The usage of a whole reply is the same when read at once or byte by byte."""
    at_once, slow = ReplyUsage(), ReplyUsage()
    at_once.scan(body)
    for at in range(len(body)):
        slow.scan(body[at : at + 1])
    assert (at_once.used, slow.used, whole_usage(body)) == (used, used, used)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_usage_is_read_however_a_reply_is_cut(data: st.DataObject) -> None:
    """The usage does not depend on how a reply is split into chunks."""
    stream, num_events, written = data.draw(st.sampled_from(list(STREAMS.values())))
    body, used = data.draw(st.sampled_from(list(WHOLE.values())))
    cuts = st.lists(st.integers(0, 500), max_size=6).map(sorted)
    streamed, whole = StreamUsage(), ReplyUsage()
    for piece in cut(stream, data.draw(cuts)):
        streamed.scan(piece)
    for piece in cut(body, data.draw(cuts)):
        whole.scan(piece)
    assert (streamed.num_events, streamed.used, whole.used) == (num_events, written, used)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    return [data[start:stop] for start, stop in zip([0, *at], [*at, len(data)], strict=True)]
