"""The messages of a ModelStreamInfer call's way back: one inference response each, or an error.

Sources: Triton's grpc_service.proto, ModelStreamInferResponse{error_message = 1, infer_response = 2}; server
`grpc/stream_infer_handler.cc`: `triton_final_response` is a parameter of every response; MLServer 1.7.1
`grpc/servicers.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import refusing
from gateway.protocol.conversion.parameters import IS_FINAL
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message, parse
from gateway.protocol.protobuf_wire import BYTES, fields, write_varint

_ERROR_TAG, _RESPONSE_TAG = 0x0A, 0x12  # fields 1 and 2, bytes


class StreamPart(NamedTuple):
    """One message of the stream.

    `infer_response` is a serialised ModelInferResponse. `is_final`: it is the last of its request, where the engine was
    asked to tell. `is_empty`: it tells nothing but that, and a REST client gets nothing of it.
    """

    error: str
    infer_response: bytes
    is_final: bool
    is_empty: bool


def stream_response(infer_response: bytes, *, is_final: bool | None = None) -> bytes:
    """A serialised ModelStreamInferResponse around a serialised ModelInferResponse; `is_final` is written into that."""
    final = b""
    if is_final is not None:  # a field of its own: what is appended to a serialised message is merged into it
        response = message("inference.ModelInferResponse")()
        response.parameters[IS_FINAL].bool_param = is_final
        final = response.SerializeToString()
    head = bytes((_RESPONSE_TAG,)) + write_varint(len(infer_response) + len(final))
    return b"".join((head, infer_response, final))


def stream_error(text: str, id: str = "", model: str = "", version: str = "", *, is_final: bool | None = None) -> bytes:
    """A serialised ModelStreamInferResponse that says which request failed, and why."""
    response = message("inference.ModelInferResponse")(id=id, model_name=model, model_version=version)
    encoded = text.encode("utf-8", "replace")
    error = bytes((_ERROR_TAG,)) + write_varint(len(encoded)) + encoded
    return error + stream_response(response.SerializeToString(), is_final=is_final)


def read_stream_response(data: bytes) -> StreamPart:
    """A serialised ModelStreamInferResponse, taken apart. Raises: GatewayError(UPSTREAM_PROTOCOL) where it is
    malformed."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        rest, responses = raw_contents.split(data, _RESPONSE_TAG)
        part = parse("inference.ModelStreamInferResponse", rest)
        infer_response = b"".join(responses)  # a message that comes in parts is their concatenation
        head, _ = raw_contents.split(infer_response, raw_contents.OUTPUT_TAG)
        response = parse("inference.ModelInferResponse", head)
        is_final = response.parameters[IS_FINAL].bool_param if IS_FINAL in response.parameters else False
        is_empty = is_final and not response.outputs and not part.error_message and len(response.parameters) == 1
        return StreamPart(part.error_message, infer_response, is_final, is_empty)


# MLServer's answers on the same path are ModelInferResponses.


def is_bare_response(message: bytes) -> bool:
    """Whether a message of a ModelStreamInfer's way back is a ModelInferResponse by itself, as MLServer's are.

    Triton's has two fields, an error's text and a response; a bare one begins with its model's name, and has a version,
    an id or outputs behind it. What could be both, a message with a text in field 1 alone, is Triton's error.
    """
    if not message or message[0] == _RESPONSE_TAG:
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
    return data[5:6] == b"\x12" and not data[0]


def _is_response(value: int | bytes) -> bool:
    """Whether field 2 is a message, and no version: of a ModelInferResponse all fields are bytes, 1 to 6."""
    assert isinstance(value, bytes)
    try:
        return all(number <= 6 and kind == BYTES for number, kind, _ in fields(value))
    except GatewayError:
        return False
