"""Reading and writing replies of OpenAI's responses API."""

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
from gateway.protocol.llm.responses_reply import ResponsesReplyReader, ResponsesReplyWriter


def stream_of(*events: dict) -> bytes:
    written = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return b"".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in written)


RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "gpt",
    "status": "in_progress",
    "output": [],
}
USAGE = {
    "input_tokens": 9,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 14,
}
CREATED = {"type": "response.created", "response": RESPONSE}
COMPLETED = {"type": "response.completed", "response": {**RESPONSE, "status": "completed", "usage": USAGE}}
DELTA = {
    "type": "response.output_text.delta",
    "item_id": "msg_1",
    "output_index": 0,
    "content_index": 0,
    "logprobs": [],
}
LOGPROB = {"token": "H", "logprob": -1.0, "top_logprobs": [{"token": "J", "logprob": -2.0}]}
TEXT = stream_of(
    CREATED,
    {"type": "response.in_progress", "response": RESPONSE},
    {"type": "response.output_item.added", "output_index": 0, "item": {"id": "msg_1", "type": "message"}},
    {"type": "response.content_part.added", "part": {"type": "output_text", "text": ""}},
    {**DELTA, "delta": "H", "logprobs": [LOGPROB]},
    {**DELTA, "delta": "i"},
    {"type": "response.output_text.done", "text": "Hi"},
    {"type": "response.output_item.done", "output_index": 0, "item": {"id": "msg_1", "type": "message"}},
    COMPLETED,
)
TOLD = {"token": "H", "logprob": -1.0, "bytes": None, "top_logprobs": [{"bytes": None, "token": "J", "logprob": -2.0}]}
TEXT_EVENTS = [
    Started("resp_1", "gpt", 7),
    TextDelta("H", 0, [TOLD]),
    TextDelta("i"),
    Finished(),
    TokenUsage(9, 5, 4, 3),
]


def call(number: int, arguments: str) -> dict:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": f"call_{number}",
        "name": "f",
        "arguments": arguments,
    }


TOOLS = stream_of(
    CREATED,
    {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": "reasoning", "id": "rs_1", "summary": []},
    },
    {"type": "response.reasoning_text.delta", "output_index": 0, "delta": "Well"},
    {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "."},
    {
        "type": "response.output_item.done",
        "output_index": 0,
        "item": {"type": "reasoning", "id": "rs_1", "encrypted_content": "s"},
    },
    {"type": "response.output_item.added", "output_index": 1, "item": call(1, "")},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"a":'},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "1}"},
    {"type": "response.function_call_arguments.done", "output_index": 1, "arguments": '{"a":1}'},
    {"type": "response.output_item.done", "output_index": 1, "item": call(1, '{"a":1}')},
    {"type": "response.output_item.added", "output_index": 2, "item": call(2, "")},
    {"type": "response.output_item.done", "output_index": 2, "item": call(2, '{"b":2}')},
    COMPLETED,
)
TOOLS_EVENTS = [
    Started("resp_1", "gpt", 7),
    ReasoningDelta("Well"),
    ReasoningDelta("."),
    ReasoningDelta("", signature="s"),
    ToolCallDelta(0, "call_1", "f"),
    ToolCallDelta(0, arguments='{"a":'),
    ToolCallDelta(0, arguments="1}"),
    ToolCallDelta(1, "call_2", "f"),
    ToolCallDelta(1, arguments='{"b":2}'),
    Finished("tool_calls"),
    TokenUsage(9, 5, 4, 3),
]
STREAMS = [(TEXT, TEXT_EVENTS), (TOOLS, TOOLS_EVENTS)]


def writer(generation: Generation | None = None) -> ResponsesReplyWriter:
    return ResponsesReplyWriter(generation or Generation("m"), id="resp_own", created=7, model="own")


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
    """Each engine delta is emitted as soon as it arrives; input after the end is ignored."""
    reader = ResponsesReplyReader()
    assert reader.feed(stream) == events
    assert reader.end() == reader.feed(TEXT) == []


@pytest.mark.parametrize(("stream", "events"), STREAMS)
@given(cuts=st.lists(st.integers(0, 2000), max_size=8).map(sorted))
def test_a_stream_may_be_cut_anywhere(stream, events, cuts):
    """The events do not depend on how the stream is split into chunks."""
    reader = ResponsesReplyReader()
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert [event for piece in pieces for event in reader.feed(piece)] == events


def test_a_cut_off_stream():
    """A stream that is cut off yields no Finished event."""
    reader = ResponsesReplyReader()
    reader.feed(stream_of(CREATED, {**DELTA, "delta": "H"}))
    assert reader.end() == []


@pytest.mark.parametrize(
    ("event", "events"),
    [
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "max_output_tokens"}}},
            [Finished("length")],
        ),
        (
            {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "content_filter"}}},
            [Finished("content_filter")],
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow"}}},
            [EngineFailed("slow", 429, "rate_limit_exceeded")],
        ),
        (
            {"type": "response.failed", "response": {"error": {"code": "invalid_image", "message": "no"}}},
            [EngineFailed("no", 400, "invalid_image")],
        ),
        ({"type": "error", "code": "server_error", "message": "oops"}, [EngineFailed("oops", 500, "server_error")]),
        (
            {"type": "error", "error": {"code": "server_error", "message": "oops"}},
            [EngineFailed("oops", 500, "server_error")],
        ),
        ({"type": "response.refusal.delta", "delta": "no"}, [TextDelta("no")]),
        ({"type": "response.queued", "response": RESPONSE}, []),
    ],
)
def test_other_events(event, events):
    """Incomplete responses and failures keep their reason; events without content are ignored."""
    assert ResponsesReplyReader().feed(stream_of(event)) == events


WHOLE = {
    **RESPONSE,
    "status": "completed",
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "Hi", "annotations": []}]},
        call(1, '{"a":1}'),
    ],
    "usage": USAGE,
}
WHOLE_EVENTS = [
    Started("resp_1", "gpt", 7),
    ReasoningDelta("t"),
    TextDelta("Hi"),
    ToolCallDelta(0, "call_1", "f"),
    ToolCallDelta(0, arguments='{"a":1}'),
    Finished("tool_calls"),
    TokenUsage(9, 5, 4, 3),
]


def test_a_whole_response_both_ways():
    """A whole response yields the same events as a stream, and the written response reads back as those."""
    assert ResponsesReplyReader().whole(200, json.dumps(WHOLE).encode()) == WHOLE_EVENTS
    status, body = writer().whole(WHOLE_EVENTS)
    assert status == 200
    assert ResponsesReplyReader().whole(status, body) == WHOLE_EVENTS


@pytest.mark.parametrize(
    ("status", "body", "failed"),
    [
        (
            404,
            b'{"error":{"message":"no model","code":"model_not_found"}}',
            EngineFailed("no model", 404, "model_not_found"),
        ),
        (500, b"oops", EngineFailed("oops", 500, "")),
        (200, b'{"error":{"message":"x","code":"server_error"}}', EngineFailed("x", 500, "server_error")),
        (
            200,
            b'{"status":"failed","error":null,"output":[]}',
            EngineFailed("the engine's response is failed", 500, "server_error"),
        ),
    ],
)
def test_errors_are_read(status, body, failed):
    """An engine's error reply is a failure, whatever its form."""
    assert ResponsesReplyReader().whole(status, body) == [failed]


@pytest.mark.parametrize("body", [b"oops", b"[]", b'{"id":"x"}'])
def test_what_is_no_response(body):
    """A success reply that is no response is an upstream protocol error."""
    with pytest.raises(GatewayError) as refused:
        ResponsesReplyReader().whole(200, body)
    assert refused.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(("stream", "events"), [(TEXT, [TEXT_EVENTS[0], *TEXT_EVENTS[2:]]), (TOOLS, TOOLS_EVENTS)])
def test_a_stream_both_ways(stream, events):
    """A written stream reads back as the same events."""
    wrote = writer()
    out = b"".join(wrote.feed([event]) for event in events) + wrote.end()
    assert ResponsesReplyReader().feed(out) == events


def test_a_stream_as_written():
    """A stream is written as in OpenAI's documentation."""
    wrote = writer()
    created, in_progress = told_of(wrote.feed([Started("resp_1", "gpt", 9)]))
    assert (created["type"], in_progress["type"]) == ("response.created", "response.in_progress")
    response = created["response"]
    text = {name: response[name] for name in ("id", "model", "created_at", "status", "output", "usage", "store")}
    assert text == {
        "id": "resp_1",
        "model": "gpt",
        "created_at": 9,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "store": False,
    }
    assert wrote.feed([TextDelta("")]) == b""
    assert wrote.feed([TextDelta('a"\u00e9')]) == (
        b'event: response.output_item.added\ndata: {"type":"response.output_item.added","output_index":0,'
        b'"item":{"id":"msg_1_0","type":"message","status":"in_progress","role":"assistant","content":[]},'
        b'"sequence_number":2}\n\n'
        b'event: response.content_part.added\ndata: {"type":"response.content_part.added","item_id":"msg_1_0",'
        b'"output_index":0,"content_index":0,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]},'
        b'"sequence_number":3}\n\n'
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_1_0",'
        b'"output_index":0,"content_index":0,"delta":"a\\"\xc3\xa9","logprobs":[],"sequence_number":4}\n\n'
    )
    assert wrote.feed([TextDelta("b")]) == (
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","item_id":"msg_1_0",'
        b'"output_index":0,"content_index":0,"delta":"b","logprobs":[],"sequence_number":5}\n\n'
    )
    ended = told_of(wrote.feed([Finished()]))
    assert [one["type"].removeprefix("response.") for one in ended] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert (ended[0]["text"], ended[2]["item"]["status"]) == ('a"\u00e9b', "completed")
    [completed] = told_of(wrote.feed([TokenUsage(3, 2)]))
    assert completed["sequence_number"] == 9
    assert (completed["response"]["status"], completed["response"]["output"]) == ("completed", [ended[2]["item"]])
    assert wrote.end() == wrote.feed([TextDelta("late")]) == b""


def test_what_a_response_tells_back():
    """A response repeats the request's options and reports `store` as false."""
    options = {"max_tokens": 5, "temperature": 0.5, "tool_choice": {"type": "function", "function": {"name": "f"}}}
    generation = Generation("m", messages=(Message("system", (Text("Be brief."),)),), options=options)
    reply = json.loads(writer(generation).whole([Started(), TextDelta("a"), Finished()])[1])
    names = ("instructions", "max_output_tokens", "temperature", "tool_choice", "store", "text", "usage")
    assert {name: reply[name] for name in names} == {
        "instructions": "Be brief.",
        "max_output_tokens": 5,
        "temperature": 0.5,
        "tool_choice": {"type": "function", "name": "f"},
        "store": False,
        "text": {"format": {"type": "text"}},
        "usage": None,
    }


def test_items():
    """Items follow each other; encrypted reasoning has no content part."""
    wrote = writer()
    events = [
        ReasoningDelta("t", signature="s"),
        ReasoningDelta("", signature="sealed"),
        ToolCallDelta(0, "", "f", "{"),
        ToolCallDelta(1, "id", "g", "{}"),
        ToolCallDelta(0, arguments="}"),
        Finished("tool_calls"),
        TokenUsage(1, 1),
    ]
    written = told_of(wrote.feed(events))
    assert [one["sequence_number"] for one in written] == list(range(len(written)))
    output = written[-1]["response"]["output"]
    assert [(item["type"], item.get("encrypted_content"), item.get("content")) for item in output[:2]] == [
        ("reasoning", "s", [{"type": "reasoning_text", "text": "t"}]),
        ("reasoning", "sealed", []),
    ]
    assert [(item["call_id"], item["arguments"]) for item in output[2:]] == [("call_resp_own_0", "{}"), ("id", "{}")]
    assert len([one for one in written if one["type"] == "response.content_part.added"]) == 1


def test_another_engine_goes_on():
    """A second Started event and choices after the first are ignored."""
    wrote = writer()
    wrote.feed([Started("a", "b"), TextDelta("x")])
    assert wrote.feed([Started("c", "d"), TextDelta("y", 1), Finished("stop", 1)]) == b""
    assert [one["type"] for one in told_of(wrote.feed([TextDelta("z")]))] == ["response.output_text.delta"]


@pytest.mark.parametrize(
    ("kind", "code"), [("upstream_reset", "server_error"), ("rate_limit_exceeded", "rate_limit_exceeded")]
)
def test_a_failure_is_written(kind, code):
    """A failure during a stream is written as an error, then as a failed response with the partial output."""
    wrote = writer()
    wrote.feed([Started(), TextDelta("a")])
    error, failed = told_of(wrote.feed([EngineFailed("it broke", code=kind)]))
    assert (error["type"], error["code"], error["message"]) == ("error", kind, "it broke")
    response = failed["response"]
    assert (failed["type"], response["status"]) == ("response.failed", "failed")
    assert response["error"] == {"code": code, "message": "it broke"}
    assert (response["output"][0]["status"], response["output"][0]["content"][0]["text"]) == ("incomplete", "a")
    assert wrote.end() == b""


def test_a_failure_before_anything():
    """A failure before the first event is written as an error only."""
    [error] = told_of(writer().feed([EngineFailed("it broke", code="deadline")]))
    assert (error["type"], error["sequence_number"]) == ("error", 0)
