"""The messages of MLServer's ModelStreamInfer, told from Triton's, and as Triton's.

Source: MLServer 1.7.1 `grpc/servicers.py`; Triton's grpc_service.proto, ModelStreamInferResponse{error_message = 1,
infer_response = 2}.
"""

from __future__ import annotations

from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf_wire import BYTES, fields, write_varint

_RESPONSE_TAG = b"\x12"  # of ModelStreamInferResponse: infer_response = 2


def is_bare_response(message: bytes) -> bool:
    """Whether a message of a ModelStreamInfer's way back is a ModelInferResponse by itself, as MLServer's are.

    Triton's has two fields, an error's text and a response; a bare one begins with its model's name, and has a version,
    an id or outputs behind it. What could be both, a message with a text in field 1 alone, is Triton's error.
    """
    if not message or message[0] == _RESPONSE_TAG[0]:
        return False
    try:
        for number, kind, value in fields(message):
            if number > 2 or kind != BYTES:
                return True
            if number == 2 and not _is_response(value):
                return True
    except GatewayError:
        return False
    return False


def begins_as_tritons(data: bytes) -> bool:
    """Whether the first bytes of a call's way back, gRPC's framing first, begin a response of Triton's, so that all of
    it may pass as it is. False where that is not known: of an error, a compressed message, fewer than six bytes."""
    return data[5:6] == _RESPONSE_TAG and not data[0]


def wrapped(infer_response: bytes) -> bytes:
    """The ModelStreamInferResponse that a bare ModelInferResponse stands for."""
    return b"".join((_RESPONSE_TAG, write_varint(len(infer_response)), infer_response))


def _is_response(value: int | bytes) -> bool:
    """Whether field 2 is a message, and no version: of a ModelInferResponse all fields are bytes, 1 to 6."""
    assert isinstance(value, bytes)
    try:
        return all(number <= 6 and kind == BYTES for number, kind, _ in fields(value))
    except GatewayError:
        return False
