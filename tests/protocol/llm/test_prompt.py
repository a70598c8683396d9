"""Extraction of prompts for prefix-aware load balancing."""

import pytest

from gateway.protocol.llm.request_facts import prompt_of_json, prompt_of_message
from gateway.protocol.protobuf import message


@pytest.mark.parametrize(
    "body, prompt",
    [
        (b'{"model":"m","messages":[{"role":"user"}]}', b'"messages":[{"role":"user"}]}'),
        (b'{"messages":[1],"model":"m"}', b'"messages":[1],"model":"m"}'),
        (b'{"seed":7,"prompt":"once"}', b'"prompt":"once"}'),
        (b'{"messages":[1],"system":"be kind"}', b'"messages":[1],"system":"be kind"}'),
        (b'{"model":"m","system":"be kind","messages":[1]}', b'"system":"be kind","messages":[1]}'),
        (b'{"id":"1","text_input":"once"}', b'"text_input":"once"}'),
        (b'{"model":"m","input":"once"}', b'"input":"once"}'),
        (b'{"x":1}', b'{"x":1}'),
        (b"", b""),
    ],
)
def test_prompts_in_json(body: bytes, prompt: bytes) -> None:
    """The prompt is the body from the first prompt key on, so that fields before it do not matter."""
    assert prompt_of_json(body) == prompt


def test_prompts_in_messages() -> None:
    """The prompt is the first raw tensor that is long enough to be text; short flags before it do not matter."""
    request = message("inference.ModelInferRequest")(model_name="m", id="1")
    request.inputs.add(name="stream", datatype="BOOL", shape=[1])
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    request.raw_input_contents.extend([b"\1", b"\x14\0\0\0once upon a time, so"])
    assert prompt_of_message(request.SerializeToString()) == b"\x14\0\0\0once upon a time, so"


def test_prompts_in_typed_messages() -> None:
    """With typed contents the prompt is the first input."""
    request = message("inference.ModelInferRequest")(model_name="m")
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"once")
    assert prompt_of_message(request.SerializeToString()) == request.inputs[0].SerializeToString()


@pytest.mark.parametrize("data", [b"", b"\x3a\xff", b"\x07\x07"])
def test_no_message(data: bytes) -> None:
    """A malformed message has an empty prompt, without an error."""
    assert prompt_of_message(data) == b""
