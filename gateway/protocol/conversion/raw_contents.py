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
from gateway.protocol.protobuf_wire import BYTES, read_varint, skip, write_varint

INPUT_TAG = 0x3A  # field 7, bytes
OUTPUT_TAG = 0x32  # field 6, bytes


def split(message: Raw, raw_tag: int) -> tuple[bytes, list[memoryview]]:
    """The message without its raw tensors, and these. Raises: ValueError where it is no protobuf message."""
    view, end = memoryview(message), len(message)
    data = cast(bytes, message)  # both give numbers by their index
    rest: list[memoryview] = []
    tensors: list[memoryview] = []
    at = copied = 0
    try:
        while at < end:
            start = at
            tag, at = read_varint(data, at)
            if tag & 7 != BYTES:
                at = skip(data, at, tag)
                continue
            size, at = read_varint(data, at)
            stop = at + size
            if tag == raw_tag:
                rest.append(view[copied:start])
                tensors.append(view[at:stop])
                copied = stop
            at = stop
    except (IndexError, GatewayError):
        at = end + 1
    if at != end:
        raise ValueError("the message is malformed")
    if not tensors:
        return bytes(message), tensors
    rest.append(view[copied:])
    return b"".join(rest), tensors


def joined(rest: bytes, raw_tag: int, tensors: Iterable[Raw]) -> bytes:
    """The message with its raw tensors."""
    pieces: list[Raw] = [rest]
    tag = bytes((raw_tag,))
    for tensor in tensors:
        pieces += (tag + write_varint(len(tensor)), tensor)
    return b"".join(pieces)
