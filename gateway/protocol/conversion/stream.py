"""The messages of a ModelStreamInfer call's way back: one inference response each, or an error.

Source: Triton's grpc_service.proto, ModelStreamInferResponse{error_message = 1, infer_response = 2}; server
`grpc/stream_infer_handler.cc`: `triton_final_response` is a parameter of every response.
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import refusing
from gateway.protocol.conversion.parameters import IS_FINAL
from gateway.protocol.errors import ErrorKind
from gateway.protocol.infer_message_head import write_varint
from gateway.protocol.protobuf import message, parse

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
    fields = _final_parameter(is_final) if is_final is not None else b""
    head = bytes((_RESPONSE_TAG,)) + write_varint(len(infer_response) + len(fields))
    return b"".join((head, infer_response, fields))


def stream_error(text: str, id: str = "", model: str = "", version: str = "", *, is_final: bool | None = None) -> bytes:
    """A serialised ModelStreamInferResponse that says which request failed, and why."""
    response = message("inference.ModelInferResponse")(id=id, model_name=model, model_version=version)
    fields = text.encode("utf-8", "replace")
    error = bytes((_ERROR_TAG,)) + write_varint(len(fields)) + fields
    return error + stream_response(response.SerializeToString(), is_final=is_final)


def read_stream_response(data: bytes) -> StreamPart:
    """A serialised ModelStreamInferResponse, taken apart.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        rest, responses = raw_contents.split(data, _RESPONSE_TAG)
        part = parse("inference.ModelStreamInferResponse", rest)
        infer_response = b"".join(responses)  # a message that comes in parts is their concatenation
        head, _ = raw_contents.split(infer_response, raw_contents.OUTPUT_TAG)
        response = parse("inference.ModelInferResponse", head)
        is_final = response.parameters[IS_FINAL].bool_param if IS_FINAL in response.parameters else False
        is_empty = is_final and not response.outputs and not part.error_message and len(response.parameters) == 1
        return StreamPart(part.error_message, infer_response, is_final, is_empty)


def _final_parameter(is_final: bool) -> bytes:
    """The parameter as a field of its own: what is appended to a serialised message is merged into it."""
    response = message("inference.ModelInferResponse")()
    response.parameters[IS_FINAL].bool_param = is_final
    return bytes(response.SerializeToString())
