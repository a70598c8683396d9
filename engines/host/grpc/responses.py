"""Responses as ModelInferResponse and ModelStreamInferResponse messages; tensors are not copied.

Source: Triton's grpc_service.proto; server `grpc/infer_handler.h` (InferResponseCompleteCommon),
`grpc/stream_infer_handler.cc`.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import cast

from engines.core.errors import invalid
from engines.core.messages import InferResponse, Raw, Scalar, SharedMemory
from engines.host.classification import classify
from engines.host.model import HostedModel
from gateway.protocol.conversion.parameters import set_for_reply
from gateway.protocol.conversion.raw_contents import OUTPUT_TAG
from gateway.protocol.protobuf import message
from gateway.protocol.protobuf_wire import write_varint
from gateway.wire.grpc import PREFIX

MAX_MESSAGE_BYTES = 2**31 - 1

# From this size on a tensor is a separate piece instead of a copy.
_JOIN_BYTES = 32 * 1024

_RESPONSE = "inference.ModelInferResponse"
_ID_TAG, _STREAM_RESPONSE_TAG = b"\x1a", b"\x12"

# By tensor name: the number of classes in place of its values.
Classes = Mapping[str, int]


def write_infer(model: HostedModel, id: str, response: InferResponse, classes: Classes) -> list[Raw]:
    """A serialised ModelInferResponse, in pieces.

    Raises: EngineError(INVALID_ARG) for classes of what has none, and for a message that gRPC cannot send.
    """
    outputs = response.outputs
    if classes:
        outputs = tuple([classify(output, classes.get(output.name, 0), model) for output in outputs])
    pieces: list[Raw] = [_head(model.name, model.version)]
    if id:
        encoded = id.encode("utf-8", "replace")
        pieces.append(_ID_TAG + write_varint(len(encoded)) + encoded)
    if response.parameters:
        pieces.append(_parameters(response.parameters))
    pieces += [_declared(output.name, output.datatype, output.shape) for output in outputs]
    for output in outputs:
        data = output.data
        if isinstance(data, SharedMemory):
            pieces.append(_raw_head(0))
            continue
        if type(data) is not bytes:
            data = memoryview(data).cast("B")
        pieces += (_raw_head(len(data)), data)
    return pieces


@lru_cache(maxsize=2048)
def _head(model: str, version: str) -> bytes:
    data: bytes = message(_RESPONSE)(model_name=model, model_version=version).SerializeToString()
    return data


def framed(pieces: Sequence[Raw], compression: tuple[bytes, int] | None = None) -> list[bytes]:
    """A message with its length prefix, in one piece where it is short; `compression` is a name and zlib's level.

    Raises: EngineError(INVALID_ARG) where it is longer than gRPC allows.
    """
    if compression is not None:
        return [_compressed(b"".join(pieces), *compression)]
    size = sum(map(len, pieces))
    if size > MAX_MESSAGE_BYTES:
        raise invalid(f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_BYTES}.")
    prefix = PREFIX.pack(False, size)
    if size < _JOIN_BYTES:
        return [b"".join((prefix, *pieces))]
    joined: list[Raw] = []
    small: list[Raw] = [prefix]
    for piece in pieces:
        if len(piece) < _JOIN_BYTES:
            small.append(piece)
        else:
            joined += (b"".join(small), piece)
            small = []
    if small:
        joined.append(b"".join(small))
    return cast(list[bytes], joined)  # a stream takes views as it takes bytes


def streamed(pieces: list[Raw], *, is_final: bool) -> list[Raw]:
    """The ModelStreamInferResponse around a ModelInferResponse, with the mark of the last one."""
    encoded = _IS_FINAL if is_final else _IS_NOT_FINAL
    size = sum(map(len, pieces)) + len(encoded)
    return [_STREAM_RESPONSE_TAG + write_varint(size) + encoded, *pieces]


def empty_final(id: str, model: str, version: str) -> list[Raw]:
    """The ModelStreamInferResponse that only marks the end of a request's responses."""
    named: bytes = message(_RESPONSE)(model_name=model, model_version=version, id=id).SerializeToString()
    return streamed([named], is_final=True)


def _parameters(values: Mapping[str, Scalar]) -> bytes:
    response = message(_RESPONSE)()
    for name, value in values.items():
        set_for_reply(response.parameters[name], name, value)
    data: bytes = response.SerializeToString()
    return data


@lru_cache(maxsize=2048)
def _declared(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """The field of an output without its data."""
    response = message(_RESPONSE)()
    response.outputs.add(name=name, datatype=datatype, shape=shape)
    data: bytes = response.SerializeToString()
    return data


@lru_cache(maxsize=2048)
def _raw_head(size: int) -> bytes:
    return bytes((OUTPUT_TAG,)) + write_varint(size)


def _compressed(content: bytes, encoding: bytes, level: int) -> bytes:
    compressor = zlib.compressobj(level, wbits=31 if encoding == b"gzip" else 15)
    data = compressor.compress(content) + compressor.flush()
    return PREFIX.pack(True, len(data)) + data


# The parameter `triton_final_response` as a field of a ModelInferResponse.
_IS_FINAL, _IS_NOT_FINAL = (
    b'"\x1b\n\x15triton_final_response\x12\x02\x08\x01',
    b'"\x1b\n\x15triton_final_response\x12\x02\x08\x00',
)
