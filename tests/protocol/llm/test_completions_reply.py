"""Reading completion replies from engines, and writing them for clients."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenUsage,
    ToolCallDelta,
)
from gateway.protocol.llm.completions import (
    CompletionsReplyReader,
    CompletionsReplyWriter,
    from_completions,
    to_completions,
)

BOTH_LOGPROBS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "with alternatives": (
        {
            "tokens": ["a", "é"],
            "token_logprobs": [-0.5, -1.5],
            "top_logprobs": [{"a": -0.5, "b": -2.0}, {}],
            "text_offset": [0, 1],
        },
        [
            {
                "token": "a",
                "logprob": -0.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "a", "logprob": -0.5, "bytes": [97]},
                    {"token": "b", "logprob": -2.0, "bytes": [98]},
                ],
            },
            {"token": "é", "logprob": -1.5, "bytes": [195, 169], "top_logprobs": []},
        ],
    ),
    "an echoed prompt's first token, and one that is part of a letter": (
        {"tokens": ["a", "\ufffd"], "token_logprobs": [None, -1.0], "top_logprobs": None, "text_offset": [0, 1]},
        [
            {"token": "a", "logprob": None, "bytes": [97], "top_logprobs": []},
            {"token": "\ufffd", "logprob": -1.0, "bytes": None, "top_logprobs": []},
        ],
    ),
}


@pytest.mark.parametrize("completions, chat", BOTH_LOGPROBS.values(), ids=BOTH_LOGPROBS)
def test_logprobs_have_two_forms(completions: dict[str, Any], chat: list[dict[str, Any]]) -> None:
    """Logprobs in the form of completions convert to the form of chat, and back."""
    assert from_completions(completions) == chat
    assert to_completions(chat, 0) == (completions, 2)
    assert to_completions(chat, 5)[0]["text_offset"] == [5, 6]


def test_logprobs_of_llama_cpp_are_in_chats_form_already() -> None:
    """llama.cpp's logprobs are already in the form of chat; values of another form yield None."""
    chat = [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]
    assert from_completions({"content": chat}) == chat
    assert from_completions(None) is None
    assert from_completions({"tokens": None}) is None


BEGUN = Started("c", "m", 9)


def chunk(choices: str, more: str = "") -> str:
    return f'data: {{"id":"c","object":"text_completion","created":9,"model":"m","choices":[{choices}]{more}}}\n\n'


def text(written: str, reason: str = "null", index: int = 0) -> str:
    return chunk(f'{{"index":{index},"text":"{written}","logprobs":null,"finish_reason":{reason}}}')


USAGE = '"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}'
DONE = "data: [DONE]\n\n"
STREAMS: dict[str, tuple[str, list[Event]]] = {
    "OpenAI's": (
        text("a") + text("b", '"stop"') + chunk("", "," + USAGE) + DONE,
        [BEGUN, TextDelta("a"), TextDelta("b"), Finished("stop"), TokenUsage(3, 2)],
    ),
    "several choices": (
        text("a") + text("b", "null", 1) + text("", '"length"') + text("", '"stop"', 1) + DONE,
        [BEGUN, TextDelta("a"), TextDelta("b", 1), Finished("length"), Finished("stop", 1)],
    ),
    "TGI's reason, without [DONE]": (
        text("a") + text("", '"eos_token"'),
        [BEGUN, TextDelta("a"), Finished("stop")],
    ),
    "logprobs": (
        chunk('{"index":0,"text":"a","logprobs":{"tokens":["a"],"token_logprobs":[-0.5]},"finish_reason":"stop"}'),
        [
            BEGUN,
            TextDelta("a", 0, [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]),
            Finished("stop"),
        ],
    ),
    "an error": (
        text("a") + 'data: {"error":{"message":"no","type":"x","code":400}}\n\n' + DONE,
        [BEGUN, TextDelta("a"), EngineFailed("no", 400, "400")],
    ),
    "cut off": (text("a"), [BEGUN, TextDelta("a")]),
}


def read(pieces: list[bytes]) -> list[Event]:
    reader = CompletionsReplyReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + reader.end()


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(list(STREAMS.values())), st.lists(st.integers(0, 500), max_size=8).map(sorted))
def test_a_stream_is_read_however_it_is_cut(case: tuple[str, list[Event]], cuts: list[int]) -> None:
    """The events do not depend on how the stream is split into chunks."""
    data = case[0].encode()
    assert read([data[at:to] for at, to in zip([0, *cuts], [*cuts, len(data)], strict=True)]) == case[1]


@pytest.mark.parametrize("stream, events", STREAMS.values(), ids=STREAMS)
def test_a_stream_is_read_and_written(stream: str, events: list[Event]) -> None:
    """A written stream reads back as the same events."""
    assert read([stream.encode()]) == events
    out = writer(include_usage=True)
    written = out.feed(events) + (out.end() if isinstance(events[-1], Finished | TokenUsage) else b"")
    assert read([written])[: len(events) - 1] == events[:-1]
    if not isinstance(events[-1], EngineFailed):
        assert read([written]) == events


def test_a_whole_reply_is_read() -> None:
    """A whole reply yields the same events as a stream."""
    body = (
        f'{{"id":"c","created":9,"model":"m","choices":[{{"text":"ab","index":0,"finish_reason":"length"}}],{USAGE}}}'
    )
    assert CompletionsReplyReader().whole(200, body.encode()) == [
        BEGUN,
        TextDelta("ab"),
        Finished("length"),
        TokenUsage(3, 2),
    ]
    assert CompletionsReplyReader().whole(503, b'{"error":"busy"}') == [EngineFailed("busy", 503)]


def writer(*, include_usage: bool = False) -> CompletionsReplyWriter:
    return CompletionsReplyWriter(Generation("a", "hi", include_usage=include_usage), id="own", created=1, model="a")


def events_of(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix("data: ")) for event in data.decode().split("\n\n")[:-1]]


HEAD = {"id": "c", "object": "text_completion", "created": 9, "model": "m"}


def choice(text: str, index: int = 0, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason} | more


def test_chunks_are_written() -> None:
    """Each text delta is a chunk, reasoning comes with an empty text, and logprob offsets continue across chunks."""
    out = writer()
    one = [{"token": "ab", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    events = [BEGUN, TextDelta("a"), TextDelta(""), ReasoningDelta("x"), ReasoningDelta("", 0, "proof")]
    events += [TextDelta("ab", 1, one), TextDelta("ab", 1, one), Finished("tool_calls", 1), TokenUsage(3, 2)]
    logprobs = {"tokens": ["ab"], "token_logprobs": [-0.5], "top_logprobs": None}
    assert [written["choices"] for written in events_of(out.feed(events))] == [
        [choice("a")],
        [choice("")],
        [choice("", reasoning_content="x")],
        [choice("ab", 1, logprobs={**logprobs, "text_offset": [0]})],
        [choice("ab", 1, logprobs={**logprobs, "text_offset": [2]})],
        [choice("", 1, "stop")],
    ]
    assert {**events_of(out.feed([TextDelta("a")]))[0], "choices": []} == {**HEAD, "choices": []}
    assert out.end() == b"data: [DONE]\n\n"


def test_a_whole_reply_is_written() -> None:
    """A whole reply contains all choices; tool calls are left out."""
    one = [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    events = [BEGUN, TextDelta("a", 1, one), TextDelta("a", 1, one), Finished("length", 1), ReasoningDelta("x")]
    events += [TextDelta("b"), ToolCallDelta(0, "1", "f"), Finished(), TokenUsage(3, 2)]
    status, body = writer().whole(events)
    logprobs = {"tokens": ["a", "a"], "token_logprobs": [-0.5, -0.5], "top_logprobs": None, "text_offset": [0, 1]}
    assert status == 200
    assert json.loads(body) == {
        **HEAD,
        "choices": [choice("b", 0, "stop", reasoning_content="x"), choice("aa", 1, "length", logprobs=logprobs)],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }
    status, body = writer().whole([EngineFailed("no", 503)])
    assert (status, json.loads(body)["error"]["message"]) == (503, "no")
    assert json.loads(writer().whole([Started()])[1])["choices"] == [choice("", 0, "stop")]
