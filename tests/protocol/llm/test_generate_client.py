"""V2 generate requests of clients, translated for engines with another API."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import generate_client
from gateway.protocol.llm.canonical import (
    EngineFailed,
    Finished,
    Generation,
    Media,
    Message,
    ReasoningDelta,
    Started,
    Text,
    TextDelta,
    TokenUsage,
)
from gateway.protocol.llm.generate_client import GenerateReplyWriter
from gateway.protocol.llm.generate_engine_reply import GenerateReplyReader
from gateway.protocol.llm.generate_engine_request import GenerateConvention, GenerateSignature

# Requests of clients


def read(body: Any, stream: bool = False) -> Generation:
    return generate_client.read_request(orjson.dumps(body), model="m", stream=stream)


OPTIONS = [
    ({"max_tokens": 5, "temperature": 0.5}, {"max_tokens": 5, "temperature": 0.5}),
    ({"parameters": {"max_tokens": 5, "stop": "x"}}, {"max_tokens": 5, "stop": ["x"]}),
    ({"max_tokens": 5, "parameters": {"max_tokens": 6}, "sampling_parameters": '{"max_tokens":7,"top_k":"8"}'},
     {"max_tokens": 5, "top_k": 8}),
    ({"sampling_parameters": '{"temperature":"0.1","seed":3.0,"stop":["a","b"],"ignore_eos":true}'},
     {"temperature": 0.1, "seed": 3, "stop": ["a", "b"], "ignore_eos": True}),
    # TensorRT-LLM's names, with the empty values that its clients send by default
    ({"max_tokens": 5, "bad_words": "", "stop_words": "", "min_length": 1, "random_seed": 9, "beam_width": 1},
     {"max_tokens": 5, "min_tokens": 1, "seed": 9}),
    ({"stop_words": [["a", "b"]], "num_return_sequences": [2], "len_penalty": 1.5, "runtime_top_p": 0.5},
     {"stop": ["a", "b"], "n": 2, "length_penalty": 1.5, "top_p": 0.5}),
    ({"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": '{"type":"object"}'},
     {"response_format": {"type": "json_schema", "json_schema": {"name": "schema", "schema": {"type": "object"}}}}),
    ({"sampling_parameters": '{"guided_decoding":"{\\"json_object\\":true}"}'},
     {"response_format": {"type": "json_object"}}),
    # parameters are scalars: other values are sent as JSON text
    ({"parameters": {"stop": '["a","b"]', "logit_bias": '{"5":1}'}}, {"stop": ["a", "b"], "logit_bias": {"5": 1}}),
    ({"n": 1, "stream": True, "exclude_input_in_output": True, "return_context_logits": False}, {}),
    # unknown options keep their name
    ({"end_id": 2, "parameters": {"lora_name": "l"}}, {"end_id": 2, "lora_name": "l"}),
]  # fmt: skip


@pytest.mark.parametrize("fields, options", OPTIONS)
def test_options_of_a_client(fields: dict[str, Any], options: dict[str, Any]) -> None:
    """Options are read from keys, `parameters` or vLLM's `sampling_parameters`, under either backend's names."""
    request = read({"text_input": "Hi"} | fields)
    assert (request.model, request.prompt, dict(request.options)) == ("m", "Hi", options)


def test_an_image_makes_it_a_message() -> None:
    """Base64 images become `data:` URLs in a message; the media type comes from their first bytes."""
    request = read({"text_input": "what is it", "image": ["/9j/4AAQ", "iVBORw0"]})
    assert request.prompt is None
    assert request.messages == (
        Message(
            "user",
            (
                Media("image", "data:image/jpeg;base64,/9j/4AAQ"),
                Media("image", "data:image/png;base64,iVBORw0"),
                Text("what is it"),
            ),
        ),
    )


@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "failed to parse"),
        (b"[]", "must be an object"),
        (b"{}", "'text_input' is missing"),
        (b'{"text_input":["a","b"]}', "'text_input' must be one string"),
        (b'{"text_input":5}', "'text_input' must be one string"),
        (b'{"text_input":"a","max_tokens":"x"}', "'max_tokens' must be a whole number"),
        (b'{"text_input":"a","max_tokens":1.5}', "'max_tokens' must be a whole number"),
        (b'{"text_input":"a","temperature":true}', "'temperature' must be a number"),
        (b'{"text_input":"a","stop_words":5}', "'stop_words' must be a string or an array"),
        (b'{"text_input":"a","sampling_parameters":"{"}', "'sampling_parameters' is no JSON"),
        (b'{"text_input":"a","sampling_parameters":"[]"}', "'sampling_parameters' must be the text"),
        (b'{"text_input":"a","sampling_parameters":{"a":1}}', "'sampling_parameters' must be the text"),
        (b'{"text_input":"a","parameters":[]}', "'parameters' must be an object"),
        (b'{"text_input":"a","parameters":{"logit_bias":"{"}}', "'logit_bias' is no JSON"),
        (b'{"text_input":"a","exclude_input_in_output":"no"}', "'exclude_input_in_output' must be true or false"),
        (b'{"text_input":"a","id":5}', "'id' must be a string"),
        (b'{"text_input":"a\xff"}', "UTF-8"),
    ],
)
def test_a_malformed_request(body: bytes, words: str) -> None:
    """The error names the malformed field."""
    with pytest.raises(GatewayError, match=words) as raised:
        generate_client.read_request(body, model="m")
    assert raised.value.kind is ErrorKind.BAD_REQUEST


# Replies to clients


def writer(body: dict[str, Any], stream: bool = False) -> GenerateReplyWriter:
    return GenerateReplyWriter(read({"text_input": "Hi"} | body, stream), id="gen-1", created=5, model="m")


REPLY = [
    Started("c-1", "gpt"),
    ReasoningDelta("hm"),
    TextDelta("a"),
    TextDelta("b"),
    Finished("length"),
    TokenUsage(1, 2),
]


def test_a_stream_to_a_client() -> None:
    """Each text delta is one event, as Triton writes it; no end marker follows."""
    made = writer({}, stream=True)
    assert made.feed(REPLY[:3]) == b'data: {"model_name":"m","model_version":"1","text_output":"a"}\n\n'
    assert made.feed(REPLY[3:]) == b'data: {"model_name":"m","model_version":"1","text_output":"b"}\n\n'
    assert made.end() == b""


def test_a_whole_reply_to_a_client() -> None:
    """A whole reply is one JSON object with sorted keys and the request's id."""
    expected = b'{"id":"7","model_name":"m","model_version":"1","text_output":"ab"}'
    assert writer({"id": "7"}).whole(REPLY) == (200, expected)


def test_what_was_asked_to_be_told() -> None:
    """Requested finish reason and token counts are in a whole reply, and in the last event of a stream."""
    flags = {"return_finish_reason": True, "return_num_output_tokens": True, "return_num_input_tokens": [True]}
    status, body = writer(flags).whole(REPLY)
    written = {"finish_reason": "length", "num_input_tokens": 1, "num_output_tokens": 2}
    assert (status, orjson.loads(body)) == (
        200,
        {"model_name": "m", "model_version": "1", "text_output": "ab"} | written,
    )
    made = writer(flags, stream=True)
    assert b'"finish_reason":"None"' in made.feed(REPLY)
    last = made.end()
    assert orjson.loads(last[6:]) == {"model_name": "m", "model_version": "1", "text_output": ""} | written
    assert read({"text_input": "Hi"} | flags).include_usage


def test_logprobs_that_were_asked_to_be_told() -> None:
    """Requested logprobs are requested from the engine and returned under the names of both backends."""
    body = {"return_log_probs": True, "return_cumulative_logprob": True}
    assert read({"text_input": "Hi"} | body).options == {"logprobs": 0}
    token = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    _, reply = writer(body).whole([TextDelta("aa", 0, [token, token]), Finished()])
    written = orjson.loads(reply)
    assert (written["output_log_probs"], written["cum_log_probs"], written["cumulative_logprob"]) == (
        [-0.5, -0.5],
        -1.0,
        -1.0,
    )


def test_several_choices_are_an_array() -> None:
    """Several choices are written as vLLM's backend does: each event has an array with an item for each choice."""
    made = writer({"n": 2}, stream=True)
    head = b'data: {"model_name":"m","model_version":"1","text_output":'
    assert made.feed([TextDelta("a", 1), TextDelta("b", 0)]) == head + b'["","a"]}\n\n' + head + b'["b",""]}\n\n'
    _, body = writer({"n": 2}).whole([TextDelta("a"), TextDelta("b", 1)])
    assert orjson.loads(body)["text_output"] == ["a", "b"]


def test_the_prompt_before_the_text() -> None:
    """With `exclude_input_in_output` false, the prompt precedes the text."""
    made = writer({"exclude_input_in_output": False}, stream=True)
    assert b'"text_output":"Hia"' in made.feed([TextDelta("a")])
    assert b'"text_output":"b"' in made.feed([TextDelta("b")])
    _, body = writer({"exclude_input_in_output": False}).whole(REPLY)
    assert orjson.loads(body)["text_output"] == "Hiab"


def test_failures_to_a_client() -> None:
    """A failure is Triton's error object, with its status in a whole reply or as the last event of a stream."""
    assert writer({}).whole([TextDelta("a"), EngineFailed("no", 429)]) == (429, b'{"error":"no"}')
    made = writer({"return_finish_reason": True}, stream=True)
    assert made.feed([TextDelta("a"), EngineFailed("no")]).endswith(b'data: {"error":"no"}\n\n')
    assert made.end() == b""


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_there_and_back(texts: list[str]) -> None:
    """The reader reads back what the writer writes."""
    made = writer({}, stream=True)
    reader = GenerateReplyReader(Generation("m", prompt="Hi"), GenerateSignature(GenerateConvention.PLAIN))
    events = reader.feed(made.feed([TextDelta(text) for text in texts])) + reader.end()
    assert [event for event in events if isinstance(event, TextDelta)] == [TextDelta(text) for text in texts if text]
