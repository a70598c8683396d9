"""The messages that a ModelStreamInfer call answers with, as far as a gateway reads and writes them.

Source: Triton's grpc_service.proto: ModelStreamInferResponse{error_message = 1, infer_response = 2}.
"""

from __future__ import annotations

from gateway.protocol.infer_message_head import Names, fields, read_names, write_varint

ERROR_TAG = 0x0A  # what a response begins with that tells of an error
_ERROR_TAG = bytes([ERROR_TAG])
_RESPONSE_TAG = b"\x12"
_ID_TAG = b"\x1a"  # of ModelInferResponse


def error_response(text: str, request_id: bytes) -> bytes:
    """A response that tells of an error; its `infer_response` says which request failed, as Triton's does."""
    told = _field(_ERROR_TAG, text.encode("utf-8"))
    return told + (_field(_RESPONSE_TAG, _field(_ID_TAG, request_id)) if request_id else b"")


def is_error(message: bytes) -> bool:
    """Whether a response tells of an error."""
    return message[:1] == _ERROR_TAG


def response_names(message: bytes) -> Names:
    """Whom a response answers; an error tells the request's id at most.

    Raises: GatewayError(BAD_REQUEST) where it is no protobuf message.
    """
    found = Names(b"", b"", b"", ())
    for number, _, value in fields(message):
        if number == 2 and isinstance(value, bytes):
            found = read_names(value, 0, len(value))
    return found


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + write_varint(len(content)) + content
