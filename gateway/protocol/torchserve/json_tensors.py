"""Tensors as the JSON that Python writes and reads, nested arrays with NaN and Infinity among them, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import orjson

from gateway.protocol.conversion.tensors import (
    MAX_RANK,
    RawTensor,
    check_data,
    element_count,
    inferred_datatype,
    nested,
    numbers,
    raw_of_elements,
    split_elements,
    unnested,
)

Write = Callable[[bytes], Any]  # an element of BYTES as a value of JSON


def as_text(element: bytes) -> str:
    """An element of BYTES as a string. Raises: ValueError where it is not UTF-8."""
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


def json_value(tensor: RawTensor, write: Write = as_text) -> Any:
    """The tensor's values as nested lists, a scalar as itself. Raises: ValueError where it has no elements, its data is
    not that of its shape, or JSON has no form for it."""
    if 0 in tensor.shape:
        raise ValueError("it has no elements")
    if tensor.datatype == "BYTES":
        return nested(list(map(write, split_elements(tensor.raw, element_count(tensor.shape)))), tensor.shape)
    check_data(tensor)
    values = numbers(tensor.datatype, tensor.raw).tolist()
    return nested(list(map(bool, values)) if tensor.datatype == "BOOL" else values, tensor.shape)


def tensor_of(name: str, value: Any) -> RawTensor | None:
    """A tensor of a JSON value: of numbers, texts or booleans, in lists of equal lengths. A value by itself has shape
    [1]. None where it is no tensor: mixed, ragged, empty, with null or objects in it."""
    try:
        shape, elements = unnested(value)
        datatype = inferred_datatype(elements)
        if datatype is None or len(shape) > MAX_RANK:
            return None
        return RawTensor(name, datatype, tuple(shape or [1]), raw_of_elements(datatype, elements))
    except ValueError:  # ragged, a number beyond 64 bits, half of a surrogate pair
        return None


def write(value: Any) -> bytes:
    """JSON with the names that Python has for what is not finite."""
    written = orjson.dumps(value)
    return written if b"null" not in written else json.dumps(value, separators=(",", ":")).encode()
