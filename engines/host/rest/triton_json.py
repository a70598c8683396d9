"""JSON values by type, and tensors' values in JSON, with Triton's errors where a value is of another type.

Source: Triton common `triton_json.h`, whose type errors are INTERNAL; server `http_server.cc` (ReadDataFromJson,
JsonBytesArrayByteSize, WriteDataToJson).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import prod
from typing import Any, TypeVar

from engines.core.errors import EngineError, internal, invalid
from engines.core.messages import Raw
from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.tensors import CODES, flatten, json_of_raw, raw_of_elements
from gateway.protocol.datatypes import ELEMENT_BYTES

T = TypeVar("T")

MAX_UINT64 = 2**64 - 1
_MAX_INT64 = 2**63 - 1


def read_json(text: bytes) -> Any:
    """Raises: EngineError(INTERNAL), as Triton does, with the position of the error."""
    try:
        return triton_json.read(text)
    except ValueError as error:
        raise internal(f"failed to parse the request JSON buffer: {error}") from None


def member(owner: Any, name: str, about: str = "") -> Any:
    """Raises: EngineError where it has none of that name; `about` stands before the text."""
    if not isinstance(owner, dict) or name not in owner:
        raise _wrong_type(about, f"attempt to access non-existing object member '{name}'")
    return owner[name]


def _reader(kind: type[T], fault: str) -> Callable[..., T]:
    """Reads a value of that type. Raises: EngineError(INTERNAL) for another one; `about` stands before the text."""

    def read(value: Any, about: str = "") -> T:
        if not isinstance(value, kind):
            raise _wrong_type(about, fault)
        return value

    return read


string = _reader(str, "attempt to access JSON non-string as string")
flag = _reader(bool, "attempt to access JSON non-boolean as boolean")
list_of = _reader(list, "attempt to access JSON non-array as array")
members = _reader(dict, "attempt to get members for non-object")


def unsigned(value: Any, about: str = "") -> int:
    if type(value) is not int or not 0 <= value <= MAX_UINT64:
        raise _wrong_type(about, "attempt to access JSON non-unsigned-integer as unsigned-integer")
    return value


def is_signed(value: Any) -> bool:
    return type(value) is int and -_MAX_INT64 - 1 <= value <= _MAX_INT64


def get(owner: Any, name: str) -> Any:
    """A member; None where it is missing or null, and where `owner` is no object."""
    return owner.get(name, None) if isinstance(owner, dict) else None


def has(owner: Any, name: str) -> bool:
    return isinstance(owner, dict) and name in owner


def _wrong_type(about: str, text: str) -> EngineError:
    return internal(f"{about}: {text}" if about else text)


_NOT_IN_JSON = ("FP16", "BF16")
_NUMBERS = ({int}, {float}, {int, float})


def raw_of_json(name: str, datatype: str, data: list[Any], count: int) -> bytes:
    """The raw form of `count` elements; BYTES may have any number of them.

    Raises: EngineError with Triton's text for the input of that name.
    """
    elements = flatten(data)
    code = CODES.get(datatype)
    if code is not None and len(elements) == count:
        kinds = set(map(type, elements))
        if kinds == {int} or (datatype in ("FP32", "FP64") and kinds in _NUMBERS):
            try:
                return array(code, elements).tobytes()
            except OverflowError:
                pass  # an integer is truncated to its low bytes
    return _raw_of_any(name, datatype, elements, count)


def json_of_output(name: str, datatype: str, shape: tuple[int, ...], raw: Raw) -> bytes:
    """The JSON array of an output's values.

    Raises: EngineError where JSON has no form for them, or their number differs from the shape's.
    """
    if datatype in _NOT_IN_JSON:
        raise invalid(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    try:
        return json_of_raw(datatype, raw, prod(shape))
    except ValueError:
        raise internal(f"output tensor shape does not match size of output for '{name}'") from None


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
        raise internal("Unable to parse 'data': Shape does not match true shape of 'data' field")
    return raw_of_elements(datatype, elements)


def _fault(datatype: str, element: Any) -> str:
    """The reason why an element is not of the datatype, else ""."""
    if datatype == "BOOL":
        return "" if isinstance(element, bool) else "non-boolean as boolean"
    if datatype.startswith("FP"):
        return "" if type(element) in (int, float) else "non-number as double"
    if datatype.startswith("INT"):
        return "" if is_signed(element) else "non-signed-integer as signed-integer"
    is_unsigned = type(element) is int and 0 <= element < 2**64
    return "" if is_unsigned else "non-unsigned-integer as unsigned-integer"
