"""Tensors as the JSON that Python writes and reads, nested arrays with NaN and Infinity among them, and back."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import orjson

from gateway.protocol.conversion.tensors import Raw, element_count, raw_of_elements, read_array, split_elements
from gateway.protocol.datatypes import DATATYPES, ELEMENT_BYTES

_CODES = {"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i"}
_CODES |= {"INT64": "q", "FP32": "f", "FP64": "d"}
_INFERRED = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES"}
_MAX_RANK = 64

Write = Callable[[bytes], Any]  # an element of BYTES as a value of JSON


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor with its data in the raw form."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Raw


def as_text(element: bytes) -> str:
    """An element of BYTES as a string.

    Raises: ValueError where it is not UTF-8.
    """
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise ValueError("its data is not UTF-8, which JSON does not hold") from None


def as_text_or_base64(element: bytes) -> Any:
    """As `as_text`, and {"b64": ...} of what is not UTF-8."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}


def nested(tensor: Tensor, write: Write = as_text) -> Any:
    """The tensor's values as nested lists, a scalar as itself.

    Raises: ValueError where it has no elements, its data is not that of its shape, or JSON has no form for it.
    """
    count = element_count(tensor.shape)
    if count == 0:
        raise ValueError("it has no elements")
    values = _values(tensor, count, write)
    for axis in reversed(tensor.shape[1:]):
        values = [values[at : at + axis] for at in range(0, len(values), axis)]
    return values if tensor.shape else values[0]


def tensor_of(name: str, value: Any) -> Tensor | None:
    """A tensor of a JSON value: of numbers, texts or booleans, in arrays that are no longer here than there.

    A value by itself has shape [1]. None where it is no tensor: mixed, ragged, empty, with null or objects in it.
    """
    shape: list[int] = []
    elements = [value]
    while True:
        kinds = set(map(type, elements))
        if kinds != {list}:
            break
        lengths = set(map(len, elements))
        if len(lengths) != 1 or len(shape) == _MAX_RANK:
            return None
        shape.append(lengths.pop())
        elements = list(chain.from_iterable(elements))
    if kinds == {int, float}:
        kinds = {float}
    datatype = _INFERRED.get(kinds.pop()) if len(kinds) == 1 else None
    if datatype is None:
        return None
    try:
        return Tensor(name, datatype, tuple(shape or [1]), raw_of_elements(datatype, elements))
    except ValueError:  # a number beyond 64 bits, half of a surrogate pair
        return None


def write(value: Any) -> bytes:
    """JSON with the names that Python has for what is not finite."""
    written = orjson.dumps(value)
    return written if b"null" not in written else json.dumps(value, separators=(",", ":")).encode()


def _values(tensor: Tensor, count: int, write: Write) -> list[Any]:
    raw, datatype = tensor.raw, tensor.datatype
    if datatype == "BYTES":
        return list(map(write, split_elements(raw, count)))
    if datatype not in ELEMENT_BYTES:
        raise ValueError(f"its datatype is {datatype!r}, and none of {', '.join(DATATYPES)}")
    if len(raw) != count * ELEMENT_BYTES[datatype]:
        raise ValueError(f"{len(raw)} bytes of data are not {count} elements of {datatype}")
    match datatype:
        case "BOOL":
            return [byte != 0 for byte in raw]
        case "FP16":
            return list(struct.unpack(f"<{count}e", raw))
        case "BF16":  # the upper half of an FP32
            whole = bytearray(2 * len(raw))
            whole[2::4], whole[3::4] = raw[0::2], raw[1::2]
            return read_array("f", bytes(whole)).tolist()
        case _:
            return read_array(_CODES[datatype], raw).tolist()
