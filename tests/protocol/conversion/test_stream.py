"""Conversion of ModelStreamInfer response messages."""

from __future__ import annotations

import pytest

from gateway.protocol.conversion.stream import StreamPart, read_stream_response, stream_error, stream_response
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import parse
from tests.protocol.conversion.inferences import serialised

RESPONSE, STREAM = "inference.ModelInferResponse", "inference.ModelStreamInferResponse"
TENSOR = 'outputs {name: "o" datatype: "UINT8" shape: 200} raw_output_contents: "%s"' % ("x" * 200)
OTHER = 'parameters {key: "p" value {bool_param: true}}'
FINAL = 'parameters {key: "triton_final_response" value {bool_param: %s}}'


@pytest.mark.parametrize("is_final, written", [(None, ""), (True, FINAL % "true"), (False, FINAL % "false")])
def test_a_response_is_wrapped(is_final: bool | None, written: str) -> None:
    """A response is wrapped unchanged; Triton's final-response parameter marks whether it is the last."""
    wrapped = stream_response(serialised(RESPONSE, f'id: "7" {TENSOR}'), is_final=is_final)
    assert parse(STREAM, wrapped) == parse(STREAM, serialised(STREAM, f'infer_response {{id: "7" {TENSOR} {written}}}'))


def test_an_error_says_which_request_failed() -> None:
    """An error message carries the id, model name and version of the failed request, and nothing else."""
    expected = 'error_message: "no" infer_response {id: "7" model_name: "m" model_version: "1"}'
    assert parse(STREAM, stream_error("no", "7", "m", "1")) == parse(STREAM, serialised(STREAM, expected))
    assert parse(STREAM, stream_error("half \ud800")).error_message == "half ?"


PARTS = {
    "a response": (f"infer_response {{{TENSOR}}}", StreamPart("", serialised(RESPONSE, TENSOR), False, False)),
    "one of several": (
        f"infer_response {{{TENSOR} {FINAL % 'false'}}}",
        StreamPart("", serialised(RESPONSE, f"{TENSOR} {FINAL % 'false'}"), False, False),
    ),
    "the last": (
        f"infer_response {{{TENSOR} {FINAL % 'true'}}}",
        StreamPart("", serialised(RESPONSE, f"{TENSOR} {FINAL % 'true'}"), True, False),
    ),
    "nothing but the end": (
        f'infer_response {{id: "7" {FINAL % "true"}}}',
        StreamPart("", serialised(RESPONSE, f'id: "7" {FINAL % "true"}'), True, True),
    ),
    "parameters, and the end": (
        f"infer_response {{{OTHER} {FINAL % 'true'}}}",
        StreamPart("", serialised(RESPONSE, f"{OTHER} {FINAL % 'true'}"), True, False),
    ),
    "an error": (
        f'error_message: "no" infer_response {{id: "7" {FINAL % "true"}}}',
        StreamPart("no", serialised(RESPONSE, f'id: "7" {FINAL % "true"}'), True, False),
    ),
    "an error alone": ('error_message: "no"', StreamPart("no", b"", False, False)),
}


@pytest.mark.parametrize("text, part", PARTS.values(), ids=PARTS)
def test_a_message_of_the_stream_is_taken_apart(text: str, part: StreamPart) -> None:
    """A stream message splits into its error, the response bytes, and whether it is final or empty."""
    assert read_stream_response(serialised(STREAM, text)) == part


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x05ab", b"\x12\x02\x0a\x05", b"\x0a\x01\xff"])
def test_a_malformed_message_is_the_engines_fault(data: bytes) -> None:
    """A malformed stream message, or a malformed response in it, is an upstream protocol error."""
    with pytest.raises(GatewayError) as caught:
        read_stream_response(data)
    assert caught.value.kind is ErrorKind.UPSTREAM_PROTOCOL
