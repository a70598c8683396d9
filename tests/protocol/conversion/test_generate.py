"""Conversion of generate requests and replies between REST and gRPC."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.protocol.conversion.generate import (
    error_json,
    generate_error,
    generate_of_infer_request,
    generate_of_infer_response,
    infer_request_of_generate,
    infer_response_of_generate,
    sse_of_error,
    sse_of_infer_response,
)
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from tests.protocol.conversion.generates import METADATA
from tests.protocol.conversion.inferences import serialised

REQUEST, RESPONSE = "inference.ModelInferRequest", "inference.ModelInferResponse"

# REST request, gRPC request

REQUESTS = {
    "a text": (
        b'{"text":"h\xc3\xbc"}',
        'inputs {name: "text" datatype: "BYTES" shape: [1, 1]} raw_input_contents: "\\003\\000\\000\\000h\\303\\274"',
    ),
    "texts": (
        b'{"text":["a","b"]}',
        """inputs {name: "text" datatype: "BYTES" shape: [2, 1]}
        raw_input_contents: "\\001\\000\\000\\000a\\001\\000\\000\\000b" """,
    ),
    "keys that are no inputs are parameters, and the id is one too": (
        b'{"id":"7","n":5,"t":0.5,"parameters":{"stop":"x","stream":true},"max":-1}',
        """id: "7" inputs {name: "n" datatype: "INT32" shape: 1} raw_input_contents: "\\005\\000\\000\\000"
        parameters {key: "id" value {string_param: "7"}} parameters {key: "t" value {double_param: 0.5}}
        parameters {key: "stop" value {string_param: "x"}} parameters {key: "stream" value {bool_param: true}}
        parameters {key: "max" value {int64_param: -1}}""",
    ),
    "an input among the parameters": (
        b'{"parameters":{"n":[5]}}',
        'inputs {name: "n" datatype: "INT32" shape: 1} raw_input_contents: "\\005\\000\\000\\000"',
    ),
    "the innermost open axis takes what is left": (
        b'{"open":[1,2],"pairs":[1,2,3,4]}',
        """inputs {name: "open" datatype: "FP32" shape: [1, 2]} inputs {name: "pairs" datatype: "INT8" shape: [1, 2, 2]}
        raw_input_contents: "\\000\\000\\200?\\000\\000\\000@" raw_input_contents: "\\001\\002\\003\\004" """,
    ),
    "no elements": (
        b'{"open":[],"text":[]}',
        """inputs {name: "open" datatype: "FP32" shape: [1, 0]} inputs {name: "text" datatype: "BYTES" shape: [0, 1]}
        raw_input_contents: "" raw_input_contents: "" """,
    ),
    "a scalar": (
        b'{"scalar":true}',
        'inputs {name: "scalar" datatype: "BOOL"} raw_input_contents: "\\001"',
    ),
    "an array in an array of one": (
        b'{"n":[[5]]}',
        'inputs {name: "n" datatype: "INT32" shape: 1} raw_input_contents: "\\005\\000\\000\\000"',
    ),
}


@pytest.mark.parametrize("body, text", REQUESTS.values(), ids=REQUESTS)
def test_a_generate_as_a_grpc_request(body: bytes, text: str) -> None:
    """A key that the metadata lists as an input becomes an input, with the shape from the metadata."""
    sent = infer_request_of_generate(body, METADATA, "m", "1")
    expected = serialised(REQUEST, f'model_name: "m" model_version: "1" {text}')
    assert parse(REQUEST, sent) == parse(REQUEST, expected)


BAD_BODIES = [
    (b"", "failed to parse the JSON"),
    (b"[]", "the JSON must be an object"),
    (b'{"n":[1,2]}', r"'n': its 2 elements cannot be converted to shape \[1\]"),
    (b'{"pairs":[1,2,3]}', r"'pairs': its 3 elements cannot be converted to shape \[-1, 2, -1\]"),
    (b'{"open":[[1,2]]}', "'open': its 2 elements cannot be converted"),
    (b'{"none":[]}', "'none': its 0 elements cannot be converted"),
    (b'{"n":"x"}', "'n': its data has a string in it, which is no INT32"),
    (b'{"text":null}', "'text': its data has null in it, which is no BYTES"),
    (b'{"half":1}', "'half': FP16 data via JSON is not supported"),
    (b'{"l":[1]}', "parameter 'l' must be a number"),
    (b'{"n":1,"parameters":{"n":1}}', "input 'n' already exists in request"),
    (b'{"n":1,"n":1}', "input 'n' already exists in request"),
    (b'{"n":{"n":1}}', "'n': its data has an object in it, which is no INT32"),
    (b'{"l":{"n":{"n":1}}}', "parameter 'l' must be"),
    (b'{"parameters":{"n":1,"n":1}}', "input 'n' already exists in request"),
    (b'{"parameters":5}', "'parameters' must be an object"),
    (b'{"id":5}', "'id' must be a string"),
    (b'{"id":"\xff"}', "is not UTF-8"),
]


@pytest.mark.parametrize("body, sentence", BAD_BODIES)
def test_a_generate_that_does_not_fit_is_refused(body: bytes, sentence: str) -> None:
    """A generate request that does not match the metadata is a bad request; the error names the key."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        infer_request_of_generate(body, METADATA, "m", "")
    assert caught.value.kind is ErrorKind.BAD_REQUEST


def test_an_input_cannot_have_the_name_of_the_parameters() -> None:
    """A request with parameters for a model with an input named `parameters` is rejected, as Triton rejects it."""
    metadata = serialised("inference.ModelMetadataResponse", 'inputs {name: "parameters" datatype: "INT32" shape: 1}')
    with pytest.raises(GatewayError, match="'parameters' is also the name of an input"):
        infer_request_of_generate(b'{"parameters":{}}', metadata, "m", "")


# gRPC response, REST reply

RESPONSES = {
    "one element is no array": (
        """id: "7" model_name: "m" model_version: "1" outputs {name: "text" datatype: "BYTES" shape: [1, 1]}
        raw_output_contents: "\\001\\000\\000\\000x" """,
        b'{"id":"7","model_name":"m","model_version":"1","text":"x"}',
    ),
    "keys are sorted, arrays are flat": (
        """model_name: "m" outputs {name: "z" datatype: "INT8" shape: [1, 2]} raw_output_contents: "\\001\\002"
        outputs {name: "a" datatype: "FP32" shape: 0} raw_output_contents: ""
        parameters {key: "p" value {double_param: 2}}
        parameters {key: "triton_final_response" value {bool_param: true}}""",
        b'{"a":[],"model_name":"m","model_version":"","p":2.0,"z":[1,2]}',
    ),
    "a reserved name wins, then a parameter": (
        """model_name: "m" parameters {key: "model_name" value {int64_param: 1}}
        parameters {key: "p" value {int64_param: 1}}
        outputs {name: "p" datatype: "INT8" shape: 1} raw_output_contents: "\\002" """,
        b'{"model_name":"m","model_version":"","p":1}',
    ),
}


@pytest.mark.parametrize("text, body", RESPONSES.values(), ids=RESPONSES)
def test_a_response_as_triton_answers_a_generate(text: str, body: bytes) -> None:
    """A response converts to the same bytes that Triton writes, as a reply and as an event."""
    message = serialised(RESPONSE, text)
    assert generate_of_infer_response(message) == body
    assert sse_of_infer_response(message) == b"data: " + body + b"\n\n"


def test_an_error_as_triton_tells_it() -> None:
    """An error is written as Triton writes it, as a reply and as an event."""
    assert error_json('a "b"') == b'{"error":"a \\"b\\""}'
    assert sse_of_error("x") == b'data: {"error":"x"}\n\n'


def test_a_generate_cannot_tell_half_precision() -> None:
    """A BF16 output cannot be written as JSON and is unsupported."""
    message = serialised(RESPONSE, 'outputs {name: "h" datatype: "BF16" shape: 1} raw_output_contents: "ab"')
    with pytest.raises(GatewayError, match="output 'h': sending BF16 data via JSON is not supported") as caught:
        generate_of_infer_response(message)
    assert caught.value.kind is ErrorKind.UNSUPPORTED


# gRPC request, REST request

GRPC_REQUESTS = {
    "nothing": ("", {}),
    "tensors and parameters": (
        """id: "7" inputs {name: "text" datatype: "BYTES" shape: [1, 1]} inputs {name: "pairs" datatype: "INT8"
        shape: [1, 2, 1]} raw_input_contents: "\\001\\000\\000\\000x" raw_input_contents: "\\001\\002"
        parameters {key: "max" value {int64_param: 5}} outputs {name: "out"}
        parameters {key: "triton_enable_empty_final_response" value {bool_param: true}}""",
        {"id": "7", "text": "x", "pairs": [1, 2], "parameters": {"max": 5}},
    ),
    "typed contents": (
        'inputs {name: "n" datatype: "INT32" shape: 1 contents {int_contents: -3}}',
        {"n": -3},
    ),
}


@pytest.mark.parametrize("text, content", GRPC_REQUESTS.values(), ids=GRPC_REQUESTS)
@pytest.mark.parametrize("metadata", [METADATA, b""], ids=["known", "unknown"])
def test_a_grpc_request_as_a_generate(text: str, content: dict[str, Any], metadata: bytes) -> None:
    """Tensors become keys and parameters become one object, with or without the model's metadata."""
    body = generate_of_infer_request(serialised(REQUEST, text), metadata)
    assert (json.loads(body.data), body.head_bytes) == (content, None)


SHARED = 'parameters {key: "shared_memory_region" value {string_param: "r"}}'
NO_PLACE = [
    (f'inputs {{name: "x" datatype: "INT8" shape: 1 {SHARED}}}', "input 'x' is in shared memory"),
    (f'outputs {{name: "x" {SHARED}}}', "'shared_memory_region' of output 'x'"),
    (
        'outputs {name: "x" parameters {key: "classification" value {int64_param: 2}}}',
        "'classification' of output 'x'",
    ),
    ('inputs {name: "x" datatype: "FP16" shape: 1} raw_input_contents: "ab"', "sending FP16 data via JSON is not"),
    (
        'inputs {name: "text" datatype: "BYTES" shape: [1, 1]} raw_input_contents: "\\001\\000\\000\\000\\377"',
        "input 'text' has bytes that are not UTF-8",
    ),
    ('inputs {name: "id" datatype: "INT8" shape: 1} raw_input_contents: "a"', "input 'id' has the name of another"),
    (
        """inputs {name: "x" datatype: "INT8" shape: 1} raw_input_contents: "a"
        parameters {key: "x" value {int64_param: 2}}""",
        "input 'x' has the name of another",
    ),
    (
        'inputs {name: "open" datatype: "FP32" shape: [2, 1]} raw_input_contents: "12345678"',
        r"input 'open' has shape \[2, 1\], which a generate request does not tell",
    ),
]


@pytest.mark.parametrize("text, sentence", NO_PLACE)
def test_what_a_generate_has_no_place_for_is_unsupported(text: str, sentence: str) -> None:
    """A request with content that generate cannot express is rejected; nothing is dropped silently."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        generate_of_infer_request(serialised(REQUEST, text), METADATA)
    assert caught.value.kind is ErrorKind.UNSUPPORTED


# REST reply, gRPC response

REPLIES = {
    "outputs by the metadata": (
        b'{"id":"7","model_name":"m","model_version":"1","out":"x","scores":[1,2]}',
        METADATA,
        """id: "7" model_name: "m" model_version: "1" outputs {name: "out" datatype: "BYTES" shape: [1, 1]}
        outputs {name: "scores" datatype: "FP32" shape: [1, 2]}
        raw_output_contents: "\\001\\000\\000\\000x" raw_output_contents: "\\000\\000\\200?\\000\\000\\000@" """,
    ),
    "what the metadata does not name": (
        b'{"out":"x","finish":"stop","n":5,"list":[1.5,2],"details":{"a":[]},"nothing":null}',
        METADATA,
        """id: "own" model_name: "mine" outputs {name: "out" datatype: "BYTES" shape: [1, 1]}
        outputs {name: "list" datatype: "FP64" shape: 2} parameters {key: "finish" value {string_param: "stop"}}
        parameters {key: "n" value {int64_param: 5}} parameters {key: "details" value {string_param: "{\\"a\\":[]}"}}
        raw_output_contents: "\\001\\000\\000\\000x"
        raw_output_contents: "\\000\\000\\000\\000\\000\\000\\370?\\000\\000\\000\\000\\000\\000\\000@" """,
    ),
    "no metadata": (
        b'{"text_output":"x","b":true,"n":[1,2],"f":1.0}',
        b"",
        """id: "own" model_name: "mine" outputs {name: "text_output" datatype: "BYTES" shape: 1}
        outputs {name: "b" datatype: "BOOL" shape: 1} outputs {name: "n" datatype: "INT64" shape: 2}
        outputs {name: "f" datatype: "FP64" shape: 1}
        raw_output_contents: "\\001\\000\\000\\000x" raw_output_contents: "\\001"
        raw_output_contents: "\\001\\000\\000\\000\\000\\000\\000\\000\\002\\000\\000\\000\\000\\000\\000\\000"
        raw_output_contents: "\\000\\000\\000\\000\\000\\000\\360?" """,
    ),
}


@pytest.mark.parametrize("body, metadata, text", REPLIES.values(), ids=REPLIES)
def test_a_generate_reply_as_a_grpc_response(body: bytes, metadata: bytes, text: str) -> None:
    """An output's datatype comes from the metadata, or from its value where there is no metadata."""
    response = infer_response_of_generate(body, metadata, id="own", model="mine")
    assert parse(RESPONSE, response) == parse(RESPONSE, serialised(RESPONSE, text))


BAD_REPLIES = [
    (b"<html>", "failed to parse the JSON"),
    (b'{"scores":"x"}', "'scores': its data has a string in it|cannot be converted"),
    (b'{"scores":[1,2,3]}', r"'scores': its 3 elements cannot be converted to shape \[-1, 2\]"),
    (b'{"id":{}}', "'id' must be a string"),
]


@pytest.mark.parametrize("body, sentence", BAD_REPLIES)
def test_a_malformed_generate_reply_is_the_engines_fault(body: bytes, sentence: str) -> None:
    """A malformed reply is an upstream protocol error that describes the problem."""
    with pytest.raises(GatewayError, match=sentence) as caught:
        infer_response_of_generate(body, METADATA)
    assert caught.value.kind is ErrorKind.UPSTREAM_PROTOCOL


@pytest.mark.parametrize(
    "body, text",
    [(b'{"error":"no"}', "no"), (b'{"out":"x"}', None), (b'{"out":"\\"error\\""}', None), (b'{"error":5}', None)],
)
def test_an_error_is_told_from_a_reply(body: bytes, text: str | None) -> None:
    """An error reply is recognized by its `error` key."""
    assert generate_error(body) == text


def test_malformed_metadata_is_the_engines_fault() -> None:
    """Malformed metadata is an upstream protocol error, since it comes from the engine."""
    with pytest.raises(GatewayError) as caught:
        infer_request_of_generate(b"{}", b"\xff", "m", "")
    assert caught.value.kind is ErrorKind.UPSTREAM_PROTOCOL
