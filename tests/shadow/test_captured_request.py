"""Captured requests, and which of them are mirrored."""

from __future__ import annotations

import orjson
import pytest

from gateway.dataplane.context.capture import Capture, CapturedFacts
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import message
from gateway.protocol.v2_facts import InputFacts
from gateway.shadow.captured_request import read_request


def rest(path: str, body: bytes, *lines: str) -> Capture:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\n{''.join(line + chr(13) + chr(10) for line in lines)}\r\n"
    return Capture(CapturedFacts("r", "old", None, "id", head, False, "", 200, 0.1, 0.1), body, b"")


def by_grpc(**parameters: int) -> Capture:
    request = message("inference.ModelInferRequest")(model_name="m")
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    data = request.SerializeToString()
    return Capture(CapturedFacts("r", "old", None, "id", "", True, "identity", 0, 0.1, 0.1), data, b"")


INPUT = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
INFER = "/v2/models/m/infer"


def test_a_request_is_known_by_its_facts() -> None:
    """A captured request has operation, model, inputs and text; the text of a binary one is its JSON part."""
    body = orjson.dumps({"inputs": [INPUT]})
    requested = read_request(rest(INFER, body))
    assert (requested.call.operation, requested.model, requested.refusal) == (Operation.INFER, "m", "")
    assert requested.inputs == (InputFacts("x", "FP32", (1, 2), 8),)
    assert requested.text == body.decode()
    binary = rest(INFER, body + b"\x00\x01", f"inference-header-content-length: {len(body)}")
    assert read_request(binary).text == body.decode()
    chat = read_request(rest("/v1/chat/completions", b'{"model": "llama", "messages": []}'))
    assert (chat.call.operation, chat.model) == (Operation.CHAT, "llama")
    assert read_request(by_grpc()).model == "m"


REFUSED = [
    (rest(INFER, orjson.dumps({"parameters": {"sequence_id": 7}, "inputs": [INPUT]})), "sequence"),
    (rest("/v2/models/m/generate", b'{"text_input": "a", "sequence_id": "s"}'), "sequence"),
    (by_grpc(sequence_id=7), "sequence"),
    (
        rest(INFER, orjson.dumps({"inputs": [INPUT | {"parameters": {"shared_memory_region": "a"}}]})),
        "shared_memory",
    ),
    (rest("/v2/models/m/infer_stream", b"{}"), "stream"),
]


@pytest.mark.parametrize("capture, refusal", REFUSED)
def test_what_would_leave_a_mark_is_not_mirrored(capture: Capture, refusal: str) -> None:
    """Parts of sequences, requests with shared memory, and streams of messages are not mirrored."""
    assert read_request(capture).refusal == refusal


def test_what_cannot_be_read_is_mirrored() -> None:
    """A malformed request is mirrored, so that both engines' errors can be compared."""
    for body in (b"nonsense", b'{"inputs": 1}', b""):
        requested = read_request(rest(INFER, body))
        assert (requested.model, requested.refusal) == ("m", "")
