"""A tensor's data in its three forms: raw bytes, JSON values, and the typed contents of a gRPC message.

Raw is the form that holds everything: row-major, little-endian, BOOL as one byte, each element of BYTES behind its
length as four bytes. Numbers are converted as Triton converts them: an integer that its datatype cannot hold keeps its
low bytes, a number that FP32 cannot hold becomes infinite.
Source: Triton server `http_server.cc` (ReadDataFromJson, WriteDataToJson) and `grpc/infer_handler.cc`
(InferGRPCToInput); the binary tensor data extension.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from gateway.protocol.conversion import triton_json
from gateway.protocol.datatypes import DATATYPES, ELEMENT_BYTES
from gateway.protocol.protobuf import Message

Raw = bytes | memoryview

MAX_ELEMENTS = 2**63 - 1

_WIDE = {"INT": "q", "UINT": "Q"}  # type codes of `array` by a datatype's family, and by datatype
CODES = {"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i"}
CODES |= {"INT64": "q", "FP32": "f", "FP64": "d"}
_INTEGERS = frozenset(CODES) - {"FP32", "FP64"}
_INFERRED = {bool: "BOOL", int: "INT64", float: "FP64", str: "BYTES"}
_TRUTHS = bytes((0,)) + bytes((1,)) * 255
MAX_RANK = 64
# The rows of a tensor without elements still take a list each, which a shape of a few bytes may request by billions.
_MAX_EMPTY_LISTS = 65536
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}

# The field of InferTensorContents that each datatype's values stand in, and their type code there.
CONTENTS = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "i"),
    "INT16": ("int_contents", "i"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "I"),
    "UINT16": ("uint_contents", "I"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor in V2's raw form: row-major, little-endian, each element of BYTES behind its length as four bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: Raw


def element_count(shape: Sequence[int]) -> int:
    """How many elements a shape has; one where it has no axes. Raises: ValueError where they are more than Triton
    counts."""
    count = 1
    for axis in shape:
        count *= axis
        if abs(count) > MAX_ELEMENTS:  # an axis below none too: nothing here grows without end
            raise ValueError(f"its shape has more than {MAX_ELEMENTS} elements")
    return count


def flatten(data: Any) -> list[Any]:
    """The elements of nested arrays in their order, however deep each of them stands; of a scalar, itself."""
    elements = data if isinstance(data, list) else [data]
    while True:
        kinds = set(map(type, elements))
        if list not in kinds:
            return elements
        if len(kinds) > 1:
            return _flatten_mixed(elements)
        elements = list(chain.from_iterable(elements))


def _flatten_mixed(elements: list[Any]) -> list[Any]:
    flat: list[Any] = []
    left = [iter(elements)]
    while left:
        for element in left[-1]:
            if type(element) is list:
                left.append(iter(element))
                break
            flat.append(element)
        else:
            left.pop()
    return flat


def raw_of_elements(datatype: str, elements: list[Any]) -> bytes:
    """The raw form of values as JSON has them. Raises: ValueError where one of them is not of the datatype, or the
    datatype is unknown."""
    try:
        match datatype:
            case "BYTES":
                return _raw_of_texts(elements)
            case "BOOL":
                return bytes(_all_of(datatype, elements, bool))
            case "FP32" | "FP64":
                return array(CODES[datatype], _all_of(datatype, elements, int, float)).tobytes()
            case "FP16":
                return struct.pack(f"<{len(elements)}e", *_all_of(datatype, elements, int, float))
            case "BF16":  # the upper half of an FP32, as Triton's clients make it
                whole = array("f", _all_of(datatype, elements, int, float)).tobytes()
                return read_array("H", whole)[1::2].tobytes()
            case _ if datatype in _INTEGERS:
                wide = array(_WIDE[datatype.rstrip("0123456789")], _all_of(datatype, elements, int))
                return narrow(wide, ELEMENT_BYTES[datatype])
    except OverflowError:
        raise ValueError(f"its data has a number in it that is out of the range of {datatype}") from None
    raise ValueError(f"its datatype is {datatype!r}, and none of {', '.join(DATATYPES)}")


def json_of_raw(datatype: str, raw: Raw, count: int) -> bytes:
    """The JSON array of a tensor's elements. Raises: ValueError where the datatype has no form in JSON, or the data is
    not that of `count` elements."""
    if datatype in ("FP16", "BF16"):
        raise ValueError(
            f"sending {datatype} data via JSON is not supported. Please use the binary data format for output"
        )
    if datatype == "BYTES":
        return b"[" + b",".join(map(triton_json.text, split_elements(raw, count))) + b"]"
    _check_size(datatype, raw, count)
    if datatype == "BOOL":
        return triton_json.write([byte != 0 for byte in raw])
    values = read_array(CODES[datatype], raw).tolist()
    return triton_json.write(values) if datatype in _INTEGERS else triton_json.floats(values)


def check_data(tensor: RawTensor) -> None:
    """Raises: ValueError where a tensor's data is not that of its shape."""
    if len(tensor.shape) > MAX_RANK or any(axis < 0 for axis in tensor.shape):
        raise ValueError(f"its shape must be of up to {MAX_RANK} whole numbers")
    count = element_count(tensor.shape)
    if tensor.datatype == "BYTES":
        return  # its elements are counted when they are read
    _check_size(tensor.datatype, tensor.raw, count)


def _check_size(datatype: str, raw: Raw, count: int) -> None:
    if datatype not in ELEMENT_BYTES:
        raise ValueError(f"its datatype is {datatype!r}, and none of {', '.join(DATATYPES)}")
    if len(raw) != count * ELEMENT_BYTES[datatype]:
        raise ValueError(f"{len(raw)} bytes of data are not {count} elements of {datatype}")


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
            return read_array(CODES[datatype], raw)


def nested(elements: list[Any], shape: Sequence[int]) -> Any:
    """The elements as nested lists of this shape; the only one where it has no axis. Raises: ValueError where a shape
    without elements has too many lists."""
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


def unnested(data: Any) -> tuple[list[int], list[Any]]:
    """The shape of nested lists, and their elements. Raises: ValueError where the lists differ in length or depth."""
    shape: list[int] = []
    elements = [data]
    while elements and type(elements[0]) is list:
        if set(map(type, elements)) != {list} or len(set(map(len, elements))) != 1:
            raise ValueError("its rows are not of one shape")
        shape.append(len(elements[0]))
        elements = list(chain.from_iterable(elements))
    return shape, elements


def inferred_datatype(elements: list[Any]) -> str | None:
    """The datatype of JSON values of one kind; None where they are mixed, or none at all."""
    kinds = set(map(type, elements))
    if kinds == {int, float}:
        kinds = {float}
    return _INFERRED.get(kinds.pop()) if len(kinds) == 1 else None


def raw_of_contents(datatype: str, contents: Message) -> bytes:
    """The raw form of an InferTensorContents. Raises: ValueError where another datatype's values stand in it."""
    field, code = CONTENTS.get(datatype, ("", ""))
    for descriptor, _ in contents.ListFields():
        if descriptor.name != field:
            raise ValueError(f"unexpected explicit tensor data in '{descriptor.name}' for datatype '{datatype}'")
    if not field:
        return b""
    values = getattr(contents, field)
    if datatype == "BYTES":
        return join_elements(values)
    return narrow(array(code, values), ELEMENT_BYTES[datatype])


def narrow(values: array[Any], element_bytes: int) -> bytes:
    """The low bytes of each value."""
    step = values.itemsize // element_bytes
    return values.tobytes() if step == 1 else read_array(_UNSIGNED[element_bytes], values.tobytes())[::step].tobytes()


def read_array(code: str, raw: Raw) -> array[Any]:
    values: array[Any] = array(code)
    values.frombytes(raw)
    return values


def split_elements(raw: Raw, count: int) -> list[bytes]:
    """The elements of BYTES in its raw form. Raises: ValueError where they are not `count`."""
    elements: list[bytes] = []
    at, end, data = 0, len(raw), bytes(raw)
    while at < end and len(elements) < count:
        stop = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if at + 4 > end or stop > end:
            break
        elements.append(data[at + 4 : stop])
        at = stop
    if at != end or len(elements) != count:
        raise ValueError(f"{end} bytes of data are not {count} elements of BYTES")
    return elements


def join_elements(elements: Iterable[bytes]) -> bytes:
    pieces: list[bytes] = []
    for element in elements:
        pieces += (len(element).to_bytes(4, "little"), element)
    return b"".join(pieces)


def _raw_of_texts(elements: list[Any]) -> bytes:
    try:
        return join_elements(text.encode("utf-8", "surrogateescape") for text in _all_of("BYTES", elements, str))
    except UnicodeEncodeError:
        raise ValueError("its data has half of a surrogate pair in it") from None


def _all_of(datatype: str, elements: list[Any], *kinds: type) -> list[Any]:
    """The elements, all of which are of these types."""
    others = set(map(type, elements)) - set(kinds)
    if others:
        raise ValueError(f"its data has {_JSON_NAMES[others.pop()]} in it, which is no {datatype}")
    return elements


_JSON_NAMES = {
    bool: "a boolean",
    int: "an integer",
    float: "a fraction",
    str: "a string",
    dict: "an object",
    list: "an array",
    type(None): "null",
}
