"""A tensor in TF Serving's JSON: nested lists in the tensor's shape, numbers as numbers, text as strings.

NaN, Infinity and -Infinity are bare tokens. Bytes are {"b64": ...} where they are not UTF-8, and where the tensor's
name ends in `_bytes`; TF Serving answers so by the name alone, and writes other texts as the bytes they are.
FP16 and BF16 are written as the decimals they are; TF Serving itself refuses them (UNIMPLEMENTED).
Source: TF Serving `util/json_tensor.cc`; `g3doc/api_rest.md`, "JSON mapping", "Encoding binary values".
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.tensors import (
    RawTensor,
    check_data,
    element_count,
    join_elements,
    nested,
    numbers,
    raw_of_elements,
    split_elements,
    unnested,
)

_FRACTIONS = frozenset({"FP16", "BF16", "FP32", "FP64"})


def value(tensor: RawTensor) -> Any:
    """A tensor as nested lists for `orjson.dumps`; itself where it has no axis. Raises: ValueError where its data is
    not that of its shape."""
    check_data(tensor)
    if tensor.datatype == "BYTES":
        return nested(list(_texts(tensor)), tensor.shape)
    if 0 in tensor.shape:
        return nested([], tensor.shape)
    flat = numbers(tensor.datatype, tensor.raw)
    if tensor.datatype in _FRACTIONS and not isfinite(sum(flat)):  # one of them is not finite, or the sum overflows
        return nested(list(map(triton_json.scalar, flat)), tensor.shape)
    code: Any = "?" if tensor.datatype == "BOOL" else flat.typecode
    rows = memoryview(flat).cast("B").cast(code, shape=tensor.shape or (1,)).tolist()
    return rows if tensor.shape else rows[0]


def read(name: str, datatype: str | None, data: Any, shape: Sequence[int] | None = None) -> RawTensor:
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


def is_base64(value: Any) -> bool:
    """Whether a value is bytes, and no object with members."""
    return isinstance(value, dict) and len(value) == 1 and isinstance(value.get("b64"), str)


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


def _guessed(elements: list[Any]) -> str:
    kinds = set(map(type, elements))
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64" if max(elements) < 2**63 else "UINT64"
    return "BYTES" if kinds & {str, dict} else "FP64"
