"""Raw tensors of a serialised message, cut out and put back as slices: they are neither parsed nor copied twice.

`raw_input_contents` and `raw_output_contents` are the last fields of their messages, so that a writer may append them
to the serialised rest.
Source: Triton's grpc_service.proto: ModelInferRequest.raw_input_contents = 7, ModelInferResponse.raw_output_contents
= 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from gateway.protocol.conversion.tensors import Raw
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf_wire import read_varint, write_varint

INPUT_TAG = 0x3A  # field 7, bytes
OUTPUT_TAG = 0x32  # field 6, bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def split(message: Raw, raw_tag: int) -> tuple[bytes, list[memoryview]]:
    """The message without its raw tensors, and these.

    Raises: ValueError where it is no protobuf message.
    """
    view, end = memoryview(message), len(message)
    data = cast(bytes, message)  # both give numbers by their index
    rest: list[memoryview] = []
    tensors: list[memoryview] = []
    at = kept = 0
    try:
        while at < end:
            start = at
            tag, at = read_varint(data, at)
            kind = tag & 7
            if kind == _BYTES:
                size, at = read_varint(data, at)
                stop = at + size
                if tag == raw_tag:
                    rest.append(view[kept:start])
                    tensors.append(view[at:stop])
                    kept = stop
                at = stop
            elif kind == _VARINT:
                _, at = read_varint(data, at)
            else:
                at += _FIXED[kind]
    except (IndexError, KeyError, GatewayError):
        at = end + 1
    if at != end:
        raise ValueError("the message is malformed")
    if not tensors:
        return bytes(message), tensors
    rest.append(view[kept:])
    return b"".join(rest), tensors


def joined(rest: bytes, raw_tag: int, tensors: Iterable[Raw]) -> bytes:
    """The message with its raw tensors."""
    pieces: list[Raw] = [rest]
    tag = bytes((raw_tag,))
    for tensor in tensors:
        pieces += (tag + write_varint(len(tensor)), tensor)
    return b"".join(pieces)
