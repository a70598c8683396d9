"""Reading and writing replies of Anthropic's messages API."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Finished,
    Generation,
    Message,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.messages_reply import MessagesReplyReader, MessagesReplyWriter

# The examples of Anthropic's documentation ("Streaming Messages"), shortened.
TEXT = b"""event: message_start
data: {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], \
"model": "claude", "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 25, "output_tokens": 1}}}

event: content_block_start
data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "!"}}

event: content_block_stop
data: {"type": "content_block_stop", "index": 0}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence":null}, \
"usage": {"output_tokens": 15}}

event: message_stop
data: {"type": "message_stop"}

"""
TEXT_EVENTS = [Started("msg_1", "claude"), TextDelta("Hello"), TextDelta("!"), Finished(), TokenUsage(25, 15)]

TOOLS = b"""event: message_start
data: {"type":"message_start","message":{"id":"msg_2","model":"claude","usage":{"input_tokens":4,\
"cache_creation_input_tokens":2,"cache_read_input_tokens":8,"output_tokens":2}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Well"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"EqQB"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"xyz"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: content_block_start
data: {"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"t1","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":2}

event: content_block_start
data: {"type":"content_block_start","index":3,"content_block":{"type":"tool_use","id":"t2","name":"g","input":{}}}

event: content_block_stop
data: {"type":"content_block_stop","index":3}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{"output_tokens":89,\
"output_tokens_details":{"thinking_tokens":7}}}

event: message_stop
data: {"type":"message_stop"}

"""
TOOLS_EVENTS = [
    Started("msg_2", "claude"),
    ReasoningDelta("Well"),
    ReasoningDelta("", signature="EqQB"),
    ReasoningDelta("", signature="redacted_thinking:xyz"),
    ToolCallDelta(0, "t1", "f"),
    ToolCallDelta(0, arguments='{"a":1}'),
    ToolCallDelta(1, "t2", "g"),
    ToolCallDelta(1, arguments="{}"),
    Finished("tool_calls"),
    TokenUsage(14, 89, 8, 7),
]
STREAMS = [(TEXT, TEXT_EVENTS), (TOOLS, TOOLS_EVENTS)]


def writer() -> MessagesReplyWriter:
    return MessagesReplyWriter(Generation("m"), id="msg_own", created=7, model="own")


def told_of(stream: bytes) -> list[dict]:
    """The data of a stream's events; each event's name must be its type."""
    written = []
    for event in stream.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        written.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {written[-1]['type']}"
    return written


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_a_stream_is_read(stream, events):
    """Each engine event is emitted as soon as it arrives; usage covers the whole message."""
    reader = MessagesReplyReader()
    assert reader.feed(stream) == events
    assert reader.end() == []


@pytest.mark.parametrize(("stream", "events"), STREAMS)
@given(cuts=st.lists(st.integers(0, 2000), max_size=8).map(sorted))
def test_a_stream_may_be_cut_anywhere(stream, events, cuts):
    """The events do not depend on how the stream is split into chunks."""
    reader = MessagesReplyReader()
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [event for piece in pieces for event in reader.feed(piece)] == events


def test_a_cut_off_stream():
    """A stream that is cut off yields no Finished event."""
    reader = MessagesReplyReader()
    reader.feed(TEXT[: TEXT.index(b"event: message_delta")])
    assert reader.end() == []


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            EngineFailed("Overloaded", 529, "overloaded_error"),
        ),
        ({"type": "error", "error": {"type": "new", "message": "x"}}, EngineFailed("x", 500, "new")),
    ],
)
def test_an_error_amid_a_stream(error, failed):
    """An error event is a failure with the status that the API uses for that error type."""
    reader = MessagesReplyReader()
    assert reader.feed(b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n") == [failed]
    assert reader.end() == []


MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude",
    "content": [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "text", "text": "Hi"},
        {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "t2", "name": "g", "input": {}},
    ],
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 8, "output_tokens": 3},
}
MESSAGE_EVENTS = [
    Started("msg_1", "claude"),
    ReasoningDelta("t", signature="s"),
    TextDelta("Hi"),
    ToolCallDelta(0, "t1", "f"),
    ToolCallDelta(0, arguments='{"a":1}'),
    ToolCallDelta(1, "t2", "g"),
    ToolCallDelta(1, arguments="{}"),
    Finished("tool_calls"),
    TokenUsage(12, 3, 8),
]


def test_a_whole_message_both_ways():
    """A whole message yields the same events as a stream, and those are written as the same message."""
    assert MessagesReplyReader().whole(200, json.dumps(MESSAGE).encode()) == MESSAGE_EVENTS
    status, body = writer().whole(MESSAGE_EVENTS)
    assert (status, json.loads(body)) == (200, MESSAGE)


@pytest.mark.parametrize(
    ("status", "body", "failed"),
    [
        (
            404,
            b'{"type":"error","error":{"type":"not_found_error","message":"no model"}}',
            EngineFailed("no model", 404, "not_found_error"),
        ),
        (500, b"oops", EngineFailed("oops", 500, "")),
        (200, b'{"type":"error","error":{"type":"api_error","message":"x"}}', EngineFailed("x", 500, "api_error")),
    ],
)
def test_errors_are_read(status, body, failed):
    """An engine's error reply is a failure, whatever its form."""
    assert MessagesReplyReader().whole(status, body) == [failed]


@pytest.mark.parametrize("body", [b"oops", b"[]", b'{"id":"x"}'])
def test_what_is_no_message(body):
    """A success reply that is no message is an upstream protocol error."""
    with pytest.raises(GatewayError) as refused:
        MessagesReplyReader().whole(200, body)
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(("stream", "events"), STREAMS)
def test_a_stream_both_ways(stream, events):
    """A written stream reads back as the same events."""
    wrote = writer()
    out = b"".join(wrote.feed([event]) for event in events) + wrote.end()
    assert MessagesReplyReader().feed(out) == events


def test_a_stream_as_written():
    """A stream is written byte for byte as in Anthropic's documentation."""
    wrote = writer()
    assert wrote.feed([Started()]) == (
        b'event: message_start\ndata: {"type":"message_start","message":{"id":"msg_own","type":"message",'
        b'"role":"assistant","model":"own","content":[],"stop_reason":null,"stop_sequence":null,"usage":'
        b'{"input_tokens":0,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0}}}\n\n'
    )
    assert wrote.feed([TextDelta("")]) == b""
    delta = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"a\\"\xc3\xa9"}}\n\n'
    )
    assert wrote.feed([TextDelta('a"\u00e9')]) == (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n'
        b'event: ping\ndata: {"type":"ping"}\n\n' + delta
    )
    assert wrote.feed([TextDelta('a"\u00e9')]) == delta
    stop = b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    assert wrote.feed([Finished("length")]) == stop
    ending = (
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens",'
        b'"stop_sequence":null},"usage":{"input_tokens":3,"cache_creation_input_tokens":0,'
        b'"cache_read_input_tokens":0,"output_tokens":2}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert wrote.feed([TokenUsage(3, 2)]) == ending
    assert wrote.end() == wrote.feed([TextDelta("late")]) == b""


def test_blocks():
    """Blocks have consecutive indexes, and each block is closed before the next one starts."""
    wrote = writer()
    events = [
        ReasoningDelta("t", signature="s"),
        ReasoningDelta("u"),
        TextDelta("a"),
        ToolCallDelta(0, "", "f", "{"),
        ToolCallDelta(1, "id", "g", "{}"),
        ToolCallDelta(0, arguments="}"),
    ]
    written = told_of(wrote.feed(events) + wrote.end())
    kinds = {"content_block_start": "content_block", "content_block_delta": "delta", "content_block_stop": "type"}
    blocks = [(one["index"], one[kinds[one["type"]]]) for one in written if one["type"] in kinds]
    stop = "content_block_stop"
    assert blocks == [
        (0, {"type": "thinking", "thinking": "", "signature": ""}),
        (0, {"type": "thinking_delta", "thinking": "t"}),
        (0, {"type": "signature_delta", "signature": "s"}),
        (0, stop),
        (1, {"type": "thinking", "thinking": "", "signature": ""}),
        (1, {"type": "thinking_delta", "thinking": "u"}),
        (1, stop),
        (2, {"type": "text", "text": ""}),
        (2, {"type": "text_delta", "text": "a"}),
        (2, stop),
        (3, {"type": "tool_use", "id": "toolu_msg_own_0", "name": "f", "input": {}}),
        (3, {"type": "input_json_delta", "partial_json": "{"}),
        (3, stop),
        (4, {"type": "tool_use", "id": "id", "name": "g", "input": {}}),
        (4, {"type": "input_json_delta", "partial_json": "{}"}),
        (3, {"type": "input_json_delta", "partial_json": "}"}),
        (4, stop),
    ]
    assert written[-2]["delta"]["stop_reason"] == "tool_use"


def test_another_engine_goes_on():
    """A second Started event and choices after the first are ignored."""
    wrote = writer()
    wrote.feed([Started("a", "b"), TextDelta("x")])
    assert wrote.feed([Started("c", "d"), TextDelta("y", 1), Finished("stop", 1)]) == b""
    assert [one["type"] for one in told_of(wrote.feed([TextDelta("z")]))] == ["content_block_delta"]


@pytest.mark.parametrize(
    ("status", "written"),
    [(503, "overloaded_error"), (504, "timeout_error"), (502, "api_error")],
)
def test_a_failure_is_written(status, written):
    """A failure during a stream is written as Anthropic's error event, which is the last one."""
    wrote = writer()
    wrote.feed([Started(), TextDelta("a")])
    error = {"type": "error", "error": {"type": written, "message": "it broke"}, "request_id": "own"}
    assert told_of(wrote.feed([EngineFailed("it broke", status)])) == [error]
    assert wrote.end() == b""


def test_arguments_that_are_no_json():
    """Tool arguments that were cut off are returned in Anthropic's `INVALID_JSON` wrapper."""
    events = [Started(), ToolCallDelta(0, "c", "f", '{"a":'), Finished("length"), TokenUsage()]
    [block] = json.loads(writer().whole(events)[1])["content"]
    assert block["input"] == {"INVALID_JSON": '{"a":'}


def test_the_prompt_is_estimated_at_the_start():
    """A stream begins with an estimate of the prompt's tokens, and ends with the engine's count."""
    generation = Generation("m", messages=(Message("user", (Text("x" * 40),)),))
    wrote = MessagesReplyWriter(generation, id="msg_own", created=7, model="own")
    written = told_of(wrote.feed([Started(), TextDelta("a"), Finished(), TokenUsage(7, 1)]))
    assert written[0]["message"]["usage"]["input_tokens"] == 10
    assert written[-2]["usage"]["input_tokens"] == 7
