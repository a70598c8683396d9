"""A tensor in engines' JSON: nested lists in the tensor's shape, numbers as numbers, text as strings.

NaN, Infinity and -Infinity are bare tokens. Bytes that are not UTF-8 are {"b64": ...} where the engine knows that: TF
Serving, which answers so by the tensor's name alone (one that ends in `_bytes`) and writes other texts as the bytes
they are, and TorchServe's json envelope. FP16 and BF16 are written as the decimals they are; TF Serving itself refuses
them (UNIMPLEMENTED).
Source: TF Serving `util/json_tensor.cc`; `g3doc/api_rest.md`, "JSON mapping", "Encoding binary values".
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.tensors import (
    MAX_RANK,
    RawTensor,
    check_data,
    element_count,
    inferred_datatype,
    join_elements,
    nested,
    numbers,
    raw_of_elements,
    split_elements,
    unnested,
)

_FRACTIONS = frozenset({"FP16", "BF16", "FP32", "FP64"})

WriteElement = Callable[[bytes], Any]  # an element of BYTES as a value of JSON


def as_text(element: bytes) -> str:
    """An element of BYTES as a string. Raises: ValueError where it is not UTF-8."""
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise ValueError("its data is not UTF-8, which JSON does not hold") from None


def as_base64(element: bytes) -> dict[str, str]:
    return {"b64": b2a_base64(element, newline=False).decode()}


def as_text_or_base64(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return as_base64(element)


def is_base64(value: Any) -> bool:
    """Whether a value is bytes, and no object with members."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


def write_tensor(tensor: RawTensor, write: WriteElement) -> Any:
    """A tensor as nested lists for orjson; itself where it has no axis. Raises: ValueError where its data is not
    that of its shape, or JSON has no form for it."""
    check_data(tensor)
    if tensor.datatype == "BYTES":
        return nested(list(map(write, split_elements(tensor.raw, element_count(tensor.shape)))), tensor.shape)
    if 0 in tensor.shape:
        return nested([], tensor.shape)
    flat = numbers(tensor.datatype, tensor.raw)
    if tensor.datatype in _FRACTIONS and not isfinite(sum(flat)):  # one of them is not finite, or the sum overflows
        return nested(list(map(triton_json.scalar, flat)), tensor.shape)
    code: Any = "?" if tensor.datatype == "BOOL" else flat.typecode
    rows = memoryview(flat).cast("B").cast(code, shape=tensor.shape or (1,)).tolist()
    return rows if tensor.shape else rows[0]


def read_tensor(name: str, datatype: str | None, data: Any, shape: Sequence[int] | None = None) -> RawTensor:
    """The tensor of a JSON value. Where `datatype` is None it is guessed: BOOL, INT64, FP64 or BYTES. `shape` is what
    the signature tells, of which an empty tensor takes the axes that JSON does not show.

    Raises: ValueError where the value is no tensor of this datatype.
    """
    found, elements = unnested(data)
    if datatype is None:
        datatype = _guessed(elements)
    if shape is not None and 0 in found:
        found += [max(0, axis) for axis in shape[len(found) :]]
    if datatype == "BYTES":
        return RawTensor(name, datatype, tuple(found), join_elements(map(_bytes_of, elements)))
    return RawTensor(name, datatype, tuple(found), raw_of_elements(datatype, elements))


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


def _guessed(elements: list[Any]) -> str:
    kinds = set(map(type, elements))
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64" if max(elements) < 2**63 else "UINT64"
    return "BYTES" if kinds & {str, dict} else "FP64"
