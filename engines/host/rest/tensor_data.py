"""A tensor's values in JSON, to and from its raw form.

Source: Triton server `http_server.cc` (ReadDataFromJson, JsonBytesArrayByteSize, WriteDataToJson).
"""

from __future__ import annotations

from array import array
from math import prod
from typing import Any

from engines.core.errors import internal, invalid
from engines.core.messages import Raw
from engines.host.rest.triton_json import is_signed
from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.tensors import flatten, json_of_raw, raw_of_elements, split_elements
from gateway.protocol.datatypes import ELEMENT_BYTES

_NOT_IN_JSON = ("FP16", "BF16")
# Type codes of `array` for what is most often sent.
_CODES = {"INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d", "UINT8": "B", "INT8": "b", "INT16": "h"}
_NUMBERS = ({int}, {float}, {int, float})
_TRUE_SHAPE = "Shape does not match true shape of 'data' field"


def raw_of_json(name: str, datatype: str, data: list[Any], count: int) -> bytes:
    """The raw form of `count` elements; BYTES may be of any number, which is the model's to judge.

    Raises: EngineError, as Triton says what is wrong with the input of that name.
    """
    elements = flatten(data)
    code = _CODES.get(datatype)
    if code is not None and len(elements) == count:
        kinds = set(map(type, elements))
        if kinds == {int} or (datatype in ("FP32", "FP64") and kinds in _NUMBERS):
            try:
                return array(code, elements).tobytes()
            except OverflowError:
                pass  # of an integer the low bytes count
    return _raw_of_any(name, datatype, elements, count)


def raw_of_flat_json(name: str, datatype: str, data: Any, count: int) -> bytes:
    """The same of a generate request's value, which may stand without an array around it."""
    return raw_of_json(name, datatype, data if isinstance(data, list) else [data], count)


def json_of_output(name: str, datatype: str, shape: tuple[int, ...], raw: Raw) -> bytes:
    """The JSON array of an output's values.

    Raises: EngineError where JSON has no form for them, or they are not as many as the shape says.
    """
    if datatype in _NOT_IN_JSON:
        raise invalid(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    count = prod(shape)
    try:
        if datatype == "BYTES":
            return _json_of_texts(raw, count)
        return json_of_raw(datatype, raw, count)
    except ValueError:
        raise internal(f"output tensor shape does not match size of output for '{name}'") from None


def _json_of_texts(raw: Raw, count: int) -> bytes:
    """Triton does not look at what stands behind the last of them."""
    if count and not raw:
        raise ValueError("it has no elements")
    return b"[" + b",".join(map(triton_json.text, split_elements(raw, count))) + b"]"


def _raw_of_any(name: str, datatype: str, elements: list[Any], count: int) -> bytes:
    if datatype in _NOT_IN_JSON:
        raise invalid(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if datatype == "BYTES":
        try:
            return raw_of_elements(datatype, elements)
        except ValueError:
            raise internal("Unable to parse JSON bytes array: attempt to access JSON non-string as string") from None
    if datatype not in ELEMENT_BYTES:
        raise invalid(f"invalid datatype for input {name}")
    for element in elements[:count]:
        fault = _fault(datatype, element)
        if fault:
            raise internal(f"Unable to parse 'data': attempt to access JSON {fault}")
    if len(elements) != count:
        raise internal(f"Unable to parse 'data': {_TRUE_SHAPE}")
    return raw_of_elements(datatype, elements)


def _fault(datatype: str, element: Any) -> str:
    """Why an element is not of the datatype; "" where it is."""
    if datatype == "BOOL":
        return "" if isinstance(element, bool) else "non-boolean as boolean"
    if datatype.startswith("FP"):
        return "" if type(element) in (int, float) else "non-number as double"
    if datatype.startswith("INT"):
        return "" if is_signed(element) else "non-signed-integer as signed-integer"
    is_unsigned = type(element) is int and 0 <= element < 2**64
    return "" if is_unsigned else "non-unsigned-integer as unsigned-integer"
