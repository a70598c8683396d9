"""A tensor in TF Serving's JSON: nested lists in the tensor's shape, numbers as numbers, text as strings.

NaN, Infinity and -Infinity are bare tokens. Bytes are {"b64": ...} where they are not UTF-8, and where the tensor's
name ends in `_bytes`; TF Serving answers so by the name alone, and writes other texts as the bytes they are.
FP16 and BF16 are written as the decimals they are; TF Serving itself refuses them (UNIMPLEMENTED).
Source: TF Serving `util/json_tensor.cc`; `g3doc/api_rest.md`, "JSON mapping", "Encoding binary values".
"""

from __future__ import annotations

import json
import struct
from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite, isnan
from typing import Any

import orjson

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.tensors import (
    Raw,
    element_count,
    join_elements,
    raw_of_elements,
    read_array,
    split_elements,
)
from gateway.protocol.datatypes import DATATYPES, ELEMENT_BYTES

_CODES = {"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i"}
_CODES |= {"INT64": "q", "FP32": "f", "FP64": "d"}
_FRACTIONS = frozenset({"FP16", "BF16", "FP32", "FP64"})
_TRUTHS = bytes((0,)) + bytes((1,)) * 255

# The rows of a tensor without elements still take a list each, which a shape of a few bytes may ask for by billions.
_MAX_EMPTY_LISTS = 65536
_MAX_RANK = 64


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in V2's raw form: row-major, little-endian, each element of BYTES behind its length as four bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Raw


def check(tensor: RawTensor) -> None:
    """Raises: ValueError where a tensor's data is not that of its shape."""
    if len(tensor.shape) > _MAX_RANK or any(axis < 0 for axis in tensor.shape):
        raise ValueError(f"its shape must be of up to {_MAX_RANK} whole numbers")
    count = element_count(tensor.shape)
    if tensor.datatype == "BYTES":
        return  # its elements are counted when they are read
    if tensor.datatype not in ELEMENT_BYTES:
        raise ValueError(f"its datatype is {tensor.datatype!r}, and none of {', '.join(DATATYPES)}")
    if len(tensor.raw) != count * ELEMENT_BYTES[tensor.datatype]:
        raise ValueError(f"{len(tensor.raw)} bytes of data are not {count} elements of {tensor.datatype}")


def value(tensor: RawTensor) -> Any:
    """A tensor as nested lists for `orjson.dumps`; itself where it has no axis.

    Raises: ValueError where its data is not that of its shape.
    """
    check(tensor)
    if tensor.datatype == "BYTES":
        return _nested(list(_texts(tensor)), tensor.shape)
    if 0 in tensor.shape:
        return _nested([], tensor.shape)
    flat = numbers(tensor.datatype, tensor.raw)
    if tensor.datatype in _FRACTIONS and not isfinite(sum(flat)):  # one of them is not finite, or the sum overflows
        return _nested([number if isfinite(number) else _special(number) for number in flat], tensor.shape)
    code: Any = "?" if tensor.datatype == "BOOL" else flat.typecode
    nested = memoryview(flat).cast("B").cast(code, shape=tensor.shape or (1,)).tolist()
    return nested if tensor.shape else nested[0]


def numbers(datatype: str, raw: Raw) -> array[Any]:
    """A numeric tensor's elements; FP16 and BF16 as the FP32 they are, BOOL as 0 and 1."""
    match datatype:
        case "FP16":
            return array("f", struct.unpack(f"<{len(raw) // 2}e", raw))
        case "BF16":
            wide = array("H", bytes(len(raw) * 2))
            wide[1::2] = read_array("H", raw)
            return read_array("f", wide.tobytes())
        case "BOOL":
            return read_array("B", bytes(raw).translate(_TRUTHS))
        case _:
            return read_array(_CODES[datatype], raw)


def read(name: str, datatype: str | None, data: Any, shape: Sequence[int] | None = None) -> RawTensor:
    """The tensor of a JSON value. Where `datatype` is None it is guessed: BOOL, INT64, FP64 or BYTES. `shape` is what
    the signature tells, of which an empty tensor takes the axes that JSON does not show.

    Raises: ValueError where the value is no tensor of this datatype.
    """
    found, elements = _regular(data)
    if datatype is None:
        datatype = _guessed(elements)
    if shape is not None and 0 in found:
        found += [max(0, axis) for axis in shape[len(found) :]]
    if datatype == "BYTES":
        return RawTensor(name, datatype, tuple(found), join_elements(map(_bytes_of, elements)))
    return RawTensor(name, datatype, tuple(found), raw_of_elements(datatype, elements))


def read_json(body: bytes) -> Any:
    """The value of a JSON text with bare NaN, Infinity and -Infinity. The bytes of a text that is not UTF-8 are
    surrogate escapes.

    Raises: ValueError.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in body and b"Infinity" not in body and triton_json.is_utf8(body):
            raise ValueError(str(error)) from None
    try:
        return json.loads(body.decode("utf-8", "surrogateescape"))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def is_base64(value: Any) -> bool:
    """Whether a value is bytes, and no object with members."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def _special(number: float) -> orjson.Fragment:
    if isnan(number):
        return orjson.Fragment(triton_json.NAN)
    return orjson.Fragment(triton_json.INFINITY if number > 0 else triton_json.NEGATIVE_INFINITY)


def _texts(tensor: RawTensor) -> Iterator[Any]:
    # An object with this one member would be read as bytes: {"inputs": {"b64": "text"}}.
    binary = tensor.name.endswith("_bytes") or tensor.name == "b64"
    for element in split_elements(tensor.raw, element_count(tensor.shape)):
        if not binary:
            try:
                yield element.decode()
                continue
            except UnicodeDecodeError:
                pass
        yield {"b64": b2a_base64(element, newline=False).decode()}


def _bytes_of(element: Any) -> bytes:
    if isinstance(element, str):
        try:
            return element.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("its data has half of a surrogate pair in it") from None
    if not is_base64(element):
        raise ValueError('its data has neither text nor {"b64": ...} in it')
    try:
        return a2b_base64(element["b64"], strict_mode=True)
    except ValueError as error:
        raise ValueError(f"its data is no base64: {error}") from None


def _nested(elements: list[Any], shape: Sequence[int]) -> Any:
    """The elements as nested lists of this shape."""
    if not shape:
        return elements[0]
    if 0 in shape:
        outer = shape[: shape.index(0)]
        if element_count(outer) > _MAX_EMPTY_LISTS:
            raise ValueError(f"its shape {list(shape)} has no elements, and too many lists of them")
        elements, shape = [[] for _ in range(element_count(outer))], outer
    for axis in reversed(shape[1:]):
        elements = [elements[at : at + axis] for at in range(0, len(elements), axis)]
    return elements if shape else elements[0]


def _regular(data: Any) -> tuple[list[int], list[Any]]:
    """The shape of nested lists, and their elements."""
    shape: list[int] = []
    elements = [data]
    while elements and type(elements[0]) is list:
        if set(map(type, elements)) != {list} or len(set(map(len, elements))) != 1:
            raise ValueError("its rows are not of one shape")
        shape.append(len(elements[0]))
        elements = list(chain.from_iterable(elements))
    return shape, elements


def _guessed(elements: list[Any]) -> str:
    kinds = set(map(type, elements))
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64" if max(elements) < 2**63 else "UINT64"
    return "BYTES" if kinds & {str, dict} else "FP64"
