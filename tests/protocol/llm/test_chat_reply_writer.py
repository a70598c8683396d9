"""Writing chat completion replies for clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.chat_reply import ChatReplyReader, ChatReplyWriter
from tests.protocol.llm.chat_streams import BEGUN, LOGPROBS, STREAMS


def writer(*, include_usage: bool = False) -> ChatReplyWriter:
    return ChatReplyWriter(Generation("a", include_usage=include_usage), id="own", created=1, model="a")


def events_of(data: bytes) -> list[Any]:
    """The JSON data of each event."""
    assert data == b"" or data.endswith(b"\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in data.decode().split("\n\n")[:-1]]


@pytest.mark.parametrize("name", [name for name in STREAMS if "error" not in name and "gave up" not in name])
def test_what_is_written_reads_as_what_was_read(name: str) -> None:
    """A written stream reads back as the same events."""
    events = STREAMS[name][1]
    out = writer(include_usage=True)
    written = out.feed(events) + out.end()
    reader = ChatReplyReader()
    again = [event for event in reader.feed(written) if not isinstance(event, Started)]
    expected = [event for event in events if not isinstance(event, Started)]
    for at, event in enumerate(expected):
        if isinstance(event, ToolCallDelta) and event.name and not event.id:
            expected[at] = ToolCallDelta(event.position, f"call_c_0_{event.position}", event.name, event.arguments)
        if isinstance(event, Finished):
            expected[at] = Finished(event.reason, event.index)
    missing = [Finished("stop", 0)] if not any(isinstance(event, Finished) for event in events) else []
    if name == "one of two choices is cut off":
        missing = [Finished("stop", 1)]
    assert again == expected + missing


def test_the_role_stands_in_the_first_chunk_of_each_choice() -> None:
    """The role is sent with the first chunk of each choice; id, model and time come from the engine."""
    out = writer()
    assert out.feed([BEGUN]) == b""
    head = {"id": "c", "object": "chat.completion.chunk", "created": 9, "model": "m"}
    for index in (0, 1):
        first = {"index": index, "delta": {"role": "assistant", "content": "a"}, "logprobs": None}
        assert events_of(out.feed([TextDelta("a", index)])) == [{**head, "choices": [{**first, "finish_reason": None}]}]
        more = {"index": index, "delta": {"content": ""}, "logprobs": None, "finish_reason": None}
        assert events_of(out.feed([TextDelta("", index)])) == [{**head, "choices": [more]}]
    last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    assert events_of(out.feed([Finished("stop")])) == [{**head, "choices": [last]}]
    assert out.end() == b"data: [DONE]\n\n"


def test_usage_is_told_where_the_client_asked() -> None:
    """A client that requested usage gets it in its own chunk, and null in the others; other clients get no usage
    field."""
    out = writer(include_usage=True)
    chunks = events_of(out.feed([TextDelta("a"), TextDelta("b"), Finished(), TokenUsage(3, 2, 1, 1)]))
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None, None, None]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    chunks = events_of(writer().feed([TextDelta("a"), Finished(), TokenUsage(3, 2)]))
    assert [chunk.get("usage", "none") for chunk in chunks] == ["none", "none"]


def test_a_failure_amid_a_stream_is_told_and_ends_it() -> None:
    """A failure during a stream is written as OpenAI's error and ends the stream without `[DONE]`."""
    out = writer()
    out.feed([TextDelta("a")])
    error = {"message": "no", "type": "server_error", "param": None, "code": "x"}
    assert events_of(out.feed([EngineFailed("no", 502, "x")])) == [{"error": error}]
    assert out.feed([TextDelta("b"), Finished()]) == b""
    assert out.end() == b""


def test_a_whole_reply_tells_all_choices() -> None:
    """A whole reply joins the text, reasoning, tool calls and logprobs of each choice."""
    events = [
        *(BEGUN, ReasoningDelta("x"), ReasoningDelta("y"), ToolCallDelta(0, "1", "f", "{"), ToolCallDelta(1, "", "g")),
        *(ToolCallDelta(0, arguments="}"), Finished("tool_calls"), TextDelta("a", 1, LOGPROBS), TextDelta("b", 1)),
        *(Finished("length", 1), TokenUsage(3, 2)),
    ]
    status, body = writer().whole(events)
    calls = [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_c_0_1", "type": "function", "function": {"name": "g", "arguments": ""}},
    ]
    message = {"role": "assistant", "content": None, "refusal": None, "reasoning_content": "xy", "tool_calls": calls}
    other = {"role": "assistant", "content": "ab", "refusal": None}
    logprobs = {"content": LOGPROBS, "refusal": None}
    assert status == 200
    assert json.loads(body) == {
        "id": "c",
        "object": "chat.completion",
        "created": 9,
        "model": "m",
        "choices": [
            {"index": 0, "message": message, "logprobs": None, "finish_reason": "tool_calls"},
            {"index": 1, "message": other, "logprobs": logprobs, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_a_whole_reply_of_a_failure_is_openais_error() -> None:
    """A failure is OpenAI's error with the engine's status; the gateway's id, model and time replace missing ones."""
    status, body = writer().whole([BEGUN, TextDelta("a"), EngineFailed("no", 429, "rate")])
    assert status == 429
    assert json.loads(body)["error"]["message"] == "no"
    reply = json.loads(writer().whole([Started(), Finished()])[1])
    assert (reply["id"], reply["model"], reply["created"]) == ("own", "a", 1)
    assert reply["choices"][0]["message"]["content"] == ""
    assert "usage" not in reply
