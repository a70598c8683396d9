"""Detection and conversion of MLServer's bare ModelStreamInfer responses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.conversion.stream import begins_as_tritons, is_bare_response, stream_response
from gateway.protocol.message_layouts import error_response
from gateway.protocol.protobuf import message, parse
from gateway.wire.grpc import framed
from tests.protocol.conversion.inferences import serialised

RESPONSE, STREAM_RESPONSE = "inference.ModelInferResponse", "inference.ModelStreamInferResponse"

BARE = {
    "as MLServer's are": """model_name: "m" model_version: "1" id: "7"
        outputs {name: "t" datatype: "BYTES" shape: 1 contents {bytes_contents: "a"}}""",
    "raw": 'model_name: "m" outputs {name: "t" datatype: "INT8" shape: 1} raw_output_contents: "a"',
    "a name and a version": 'model_name: "m" model_version: "1"',
    "a version that begins as a field does": 'model_name: "m" model_version: "10.2"',
    "no name": 'id: "7"',
    "parameters": 'model_name: "m" parameters {key: "a" value {int64_param: 1}}',
}
TRITONS = {
    "a response": 'infer_response {model_name: "m" model_version: "1" outputs {name: "t" datatype: "INT8" shape: 1}}',
    "an empty response": "infer_response {}",
    "an error": 'error_message: "model_name"',
    "an error and whose": 'error_message: "no" infer_response {id: "7"}',
    "an error of a model": 'error_message: "no" infer_response {model_name: "m" model_version: "1" id: "7"}',
    "nothing": "",
}


@pytest.mark.parametrize("text", BARE.values(), ids=BARE)
def test_bare_responses(text: str) -> None:
    """A bare ModelInferResponse is recognized by its fields and can be wrapped as Triton's message."""
    data = serialised(RESPONSE, text)
    assert is_bare_response(data)
    whole = parse(STREAM_RESPONSE, stream_response(data))
    assert whole.error_message == ""
    assert whole.infer_response == parse(RESPONSE, data)
    assert not is_bare_response(stream_response(data))


@pytest.mark.parametrize("text", TRITONS.values(), ids=TRITONS)
def test_tritons_responses(text: str) -> None:
    """Triton's own messages are not taken for bare responses."""
    assert not is_bare_response(serialised(STREAM_RESPONSE, text))


@pytest.mark.parametrize(
    "text, is_known",
    [(TRITONS["a response"], True), (TRITONS["an empty response"], True), (TRITONS["an error"], False)],
)
def test_the_first_bytes_of_tritons(text: str, is_known: bool) -> None:
    """The first six bytes identify Triton's stream if it begins with a response."""
    assert begins_as_tritons(framed(serialised(STREAM_RESPONSE, text))) is is_known


@pytest.mark.parametrize(
    "data", [framed(serialised(RESPONSE, BARE["raw"])), framed(b"\x12\0", compressed=True), b"\0\0"]
)
def test_first_bytes_that_tell_nothing(data: bytes) -> None:
    """A bare, compressed or too short beginning is not identified as Triton's."""
    assert not begins_as_tritons(data)


def test_our_errors() -> None:
    """The gateway's own stream errors are not taken for bare responses."""
    assert not is_bare_response(error_response("no", b"7"))
    assert not is_bare_response(error_response("no", b""))


@given(st.text(min_size=1), st.sampled_from(["", "1", "2", "v1", "1.0"]), st.text(), st.binary(max_size=300))
def test_any_response(model: str, version: str, id: str, raw: bytes) -> None:
    """A response with an output is always recognized, both bare and wrapped."""
    response = message(RESPONSE)(model_name=model, model_version=version, id=id, raw_output_contents=[raw])
    response.outputs.add(name="x", datatype="UINT8", shape=[len(raw)])
    data = response.SerializeToString()
    assert is_bare_response(data)
    assert parse(STREAM_RESPONSE, stream_response(data)).infer_response == response
    assert not is_bare_response(stream_response(data))


@given(st.binary(max_size=40))
def test_no_message(data: bytes) -> None:
    """Detection never fails, whatever the bytes."""
    assert is_bare_response(data) in (True, False)
