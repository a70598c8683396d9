"""Reading replies of V2 engines as events."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Event,
    Finished,
    Generation,
    Started,
    TextDelta,
    TokenUsage,
)
from gateway.protocol.llm.generate_engine_reply import GenerateReplyReader
from gateway.protocol.llm.generate_engine_request import signature_of
from tests.protocol.llm.v2_models import (
    LLM_API,
    REPEATER,
    TRTLLM,
    TRTLLM_OF_2023,
    UPPER,
    VLLM,
)


def events_of(chunks: list[bytes], reader: GenerateReplyReader) -> list[Event]:
    return [event for chunk in chunks for event in reader.feed(chunk)] + reader.end()


def reader_of(model: dict[str, Any], **options: Any) -> GenerateReplyReader:
    return GenerateReplyReader(Generation("x", prompt="Hi", options=options), signature_of(model))


VLLM_STREAM = [
    b'data: {"finish_reason":"None","model_name":"m","model_version":"1","num_input_tokens":2,"num_output_tokens":1,'
    b'"text_output":"He"}\n\n',
    b'data: {"finish_reason":"None","model_name":"m","model_version":"1","num_input_tokens":2,"num_output_tokens":1,'
    b'"text_output":"llo"}\n\n',
    b'data: {"finish_reason":"length","model_name":"m","model_version":"1","num_input_tokens":2,"num_output_tokens":1,'
    b'"text_output":""}\n\n',
]
VLLM_EVENTS = [
    Started("", "m"),
    TextDelta("He"),
    TextDelta("llo"),
    Finished("length"),
    TokenUsage(2, 3),
]


def test_a_stream_of_vllm() -> None:
    """Each event adds text; output tokens are summed over the events, input tokens are counted once."""
    reader = reader_of(VLLM)
    assert [reader.feed(chunk) for chunk in VLLM_STREAM] == [VLLM_EVENTS[:2], VLLM_EVENTS[2:3], VLLM_EVENTS[3:4]]
    assert reader.end() == VLLM_EVENTS[4:]


@given(st.lists(st.integers(0, sum(map(len, VLLM_STREAM))), max_size=12))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    """The events do not depend on how the stream is split into chunks."""
    whole = b"".join(VLLM_STREAM)
    edges = [0, *sorted(cuts), len(whole)]
    chunks = [whole[begin:end] for begin, end in pairwise(edges)]
    assert events_of(chunks, reader_of(VLLM)) == VLLM_EVENTS


STREAMS = [
    # A model that returns only text: the generation ends with the stream.
    (REPEATER, {}, ['{"model_name":"r","text_output":"a"}', '{"model_name":"r","text_output":"b"}'],
     [Started("", "r"), TextDelta("a"), TextDelta("b"), Finished("stop")]),
    # An output of another name, with the request's id.
    (UPPER, {}, ['{"id":"7","model_name":"u","UPPER":"A","SCORE":0.5}'],
     [Started("7", "u"), TextDelta("A"), Finished("stop")]),
    # Several choices at once: an array.
    (VLLM, {"n": 2}, ['{"finish_reason":["None","None"],"text_output":["a","b"]}',
                      '{"finish_reason":["stop","None"],"text_output":["","c"]}',
                      '{"finish_reason":["stop","length"],"num_output_tokens":[1,2],"text_output":["","d"]}'],
     [Started(), TextDelta("a"), TextDelta("b", 1), TextDelta("c", 1), Finished("stop"), TextDelta("d", 1),
      Finished("length", 1), TokenUsage(0, 3)]),
    # Several choices one by one.
    (TRTLLM, {"n": 2}, ['{"sequence_index":0,"text_output":"a"}', '{"sequence_index":1,"text_output":"b"}'],
     [Started(), TextDelta("a"), TextDelta("b", 1), Finished("stop"), Finished("stop", 1)]),
    # The finish reason follows from the limit if the engine reports none.
    (TRTLLM, {"max_tokens": 2}, ['{"num_output_tokens":1,"num_input_tokens":4,"text_output":"a"}',
                                 '{"num_output_tokens":1,"num_input_tokens":4,"text_output":"b"}'],
     [Started(), TextDelta("a"), TextDelta("b"), Finished("length"), TokenUsage(4, 2)]),
    # Each event repeats all the text so far.
    (LLM_API, {}, ['{"finish_reason":"None","stop_reason":"None","text_output":"a"}',
                   '{"finish_reason":"None","stop_reason":"None","text_output":"ab"}',
                   '{"finish_reason":"stop","stop_reason":"END","text_output":"abc"}'],
     [Started(), TextDelta("a"), TextDelta("b"), TextDelta("c"), Finished("stop", 0, "END")]),
    # An error ends the stream.
    (VLLM, {}, ['{"text_output":"a"}', '{"error":"out of memory"}'],
     [Started(), TextDelta("a"), EngineFailed("out of memory")]),
    (VLLM, {}, ['{"error":"no"}'], [EngineFailed("no")]),
    # A stream without events.
    (REPEATER, {}, [], [Started(), Finished("stop")]),
    # The gateway prepends the prompt; it does not request that from the engine.
    (REPEATER, {"echo": True}, ['{"text_output":"a"}', '{"text_output":"b"}'],
     [Started(), TextDelta("Hia"), TextDelta("b"), Finished("stop")]),
    # Triton's JSON: NaN, and an incomplete UTF-8 character.
    (TRTLLM, {}, ['{"cum_log_probs":NaN,"text_output":"a"}', b'{"text_output":"\xe2\x82"}'],
     [Started(), TextDelta("a"), TextDelta("�"), Finished("stop")]),
]  # fmt: skip


@pytest.mark.parametrize("model, options, payloads, events", STREAMS)
def test_streams(
    model: dict[str, Any], options: dict[str, Any], payloads: list[str | bytes], events: list[Event]
) -> None:
    """The reader understands the stream of each backend."""
    written = [payload if isinstance(payload, bytes) else payload.encode() for payload in payloads]
    assert events_of([b"data: %b\n\n" % payload for payload in written], reader_of(model, **options)) == events


def test_logprobs_of_vllm() -> None:
    """vLLM's map of token ids becomes OpenAI's list; the sampled token comes first, whatever its rank."""
    written = [
        {
            "5": {"logprob": -2.0, "rank": 3, "decoded_token": "ä"},
            "9": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
        }
    ]
    payload = orjson.dumps({"text_output": "ä", "logprobs": orjson.dumps(written).decode()})
    _, delta = reader_of(VLLM, logprobs=1).feed(b"data: %b\n\n" % payload)
    top = [{"token": "b", "logprob": -0.5, "bytes": [98]}]
    assert delta == TextDelta("ä", 0, [{"token": "ä", "logprob": -2.0, "bytes": [195, 164], "top_logprobs": top}])


@pytest.mark.parametrize(
    "model, body, text",
    [
        (VLLM, '{"text_output":"Hi there"}', "Hi there"),  # the backend excludes the prompt: this is generated text
        (TRTLLM_OF_2023, '{"text_output":"Hi there"}', " there"),
        (TRTLLM_OF_2023, '{"text_output":["Hi there"]}', " there"),
        (TRTLLM_OF_2023, '{"text_output":"there"}', "there"),
    ],
)
def test_a_repeated_prompt_is_cut_off(model: dict[str, Any], body: str, text: str) -> None:
    """The prompt is removed from a whole reply of a backend that always repeats it."""
    assert reader_of(model).whole(200, body.encode())[1] == TextDelta(text)


def test_a_whole_reply() -> None:
    """A whole reply yields the same events as a stream."""
    body = b'{"finish_reason":"stop","model_name":"m","num_input_tokens":2,"num_output_tokens":3,"text_output":"a b"}'
    assert reader_of(VLLM).whole(200, body) == [Started("", "m"), TextDelta("a b"), Finished("stop"), TokenUsage(2, 3)]


@pytest.mark.parametrize(
    "status, body, failed",
    [
        (400, b'{"error":"unexpected inference input"}', EngineFailed("unexpected inference input", 400)),
        (400, b'data: {"error":"at once"}\n\n', EngineFailed("at once", 400)),
        (500, b"<html>", EngineFailed("<html>", 500)),
        (200, b'{"error":"late"}', EngineFailed("late", 500)),
    ],
)
def test_a_failure(status: int, body: bytes, failed: EngineFailed) -> None:
    """An error reply yields one event with the engine's message."""
    assert reader_of(VLLM).whole(status, body) == [failed]


@pytest.mark.parametrize("payload", [b"{", b"[]", b'{"text_output":5}', b'{"text_output":"a","logprobs":"["}'])
def test_a_reply_that_is_none(payload: bytes) -> None:
    """A reply that cannot be parsed is an upstream protocol error."""
    with pytest.raises(GatewayError) as raised:
        reader_of(VLLM).feed(b"data: %b\n\n" % payload)
    assert raised.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize("chunks", [VLLM_STREAM[:1], [*VLLM_STREAM[:1], b'data: {"text_out'], [b"data: "], []])
def test_a_stream_that_breaks_off(chunks: list[bytes]) -> None:
    """A stream that is cut off yields no Finished event, so that readers can detect it."""
    events = events_of(chunks, reader_of(VLLM))
    assert not [event for event in events if isinstance(event, Finished | TokenUsage)]
