"""Hypothesis strategies for inference messages with tensors of every datatype and parameters of every type."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from typing import Any

from google.protobuf import text_format
from hypothesis import strategies as st

from gateway.protocol.datatypes import DATATYPES, ELEMENT_BYTES
from gateway.protocol.protobuf import message

IN_JSON = [datatype for datatype in DATATYPES if datatype not in ("FP16", "BF16")]
CODES = {"UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h", "INT32": "i"}
CODES |= {"INT64": "q", "FP32": "f", "FP64": "d", "BOOL": "?"}
CONTENTS = {"BOOL": "bool", "FP32": "fp32", "FP64": "fp64", "INT64": "int64", "UINT64": "uint64", "BYTES": "bytes"}
CONTENTS |= dict.fromkeys(("INT8", "INT16", "INT32"), "int")
CONTENTS |= dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint")


@dataclass(frozen=True)
class Tensor:
    name: str
    datatype: str
    shape: list[int]
    raw: bytes

    @property
    def elements(self) -> list[Any]:
        return elements(self.datatype, self.raw)


def elements(datatype: str, raw: bytes) -> list[Any]:
    """Decode raw tensor data into values with a simple, slow reference implementation."""
    if datatype != "BYTES":
        return [value for (value,) in struct.iter_unpack("<" + CODES[datatype], raw)]
    found = []
    while raw:
        stop = 4 + struct.unpack("<I", raw[:4])[0]
        found.append(raw[4:stop])
        raw = raw[stop:]
    return found


def comparable(values: list[Any]) -> list[Any]:
    """Values in a comparable form: NaN equals NaN, and -0.0 differs from 0.0."""
    return [repr(value) if isinstance(value, float) else value for value in values]


names = st.text("abcdefgh_ü0123", min_size=1, max_size=6)
shapes = st.lists(st.integers(0, 3), max_size=4)
texts = st.binary(max_size=9) | st.text(max_size=4).map(str.encode)


@st.composite
def tensors(draw: st.DrawFn, datatypes: list[str] | None = None, *, axes: bool = False) -> Tensor:
    """A tensor with data that fits its shape; with `axes`, the shape has at least one axis."""
    datatype = draw(st.sampled_from(datatypes or list(DATATYPES)))
    shape = draw(shapes.filter(bool) if axes else shapes)
    count = prod(shape)
    if datatype == "BYTES":
        parts = draw(st.lists(texts, min_size=count, max_size=count))
        raw = b"".join(struct.pack("<I", len(part)) + part for part in parts)
    elif datatype == "BOOL":
        raw = bytes(draw(st.lists(st.sampled_from((0, 1)), min_size=count, max_size=count)))
    elif datatype in ("FP32", "FP64"):
        width = 32 if datatype == "FP32" else 64
        values = draw(st.lists(st.floats(width=width), min_size=count, max_size=count))
        raw = struct.pack(f"<{count}{CODES[datatype]}", *values)
    else:
        size = count * ELEMENT_BYTES[datatype]
        raw = draw(st.binary(min_size=size, max_size=size))
    return Tensor(draw(names), datatype, shape, raw)


parameters = st.dictionaries(
    names.map("p_".__add__),
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1).map(lambda value: ("int64", value))
    | st.integers(0, 2**64 - 1).map(lambda value: ("uint64", value))
    | st.text(max_size=5)
    | st.floats(),
    max_size=4,
)


def set_parameters(target: Any, values: dict[str, Any]) -> None:
    for name, value in values.items():
        parameter = target[name]
        match value:
            case bool():
                parameter.bool_param = value
            case str():
                parameter.string_param = value
            case float():
                parameter.double_param = value
            case ("int64", number):
                parameter.int64_param = number
            case ("uint64", number):
                parameter.uint64_param = number


def parameter_values(source: Any) -> dict[str, Any]:
    """The values of a map of InferParameters; int64 and uint64 count as one type."""
    values = {}
    for name, parameter in source.items():
        value = getattr(parameter, parameter.WhichOneof("parameter_choice"))
        values[name] = repr(value)
    return values


def request_of(inputs: list[Tensor], values: dict[str, Any], request_id: str = "", *, typed: bool = False) -> Any:
    request = message("inference.ModelInferRequest")(model_name="m", model_version="2", id=request_id)
    set_parameters(request.parameters, values)
    for tensor in inputs:
        made = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if typed:
            made.contents.SetInParent()
            getattr(made.contents, f"{CONTENTS[tensor.datatype]}_contents").extend(tensor.elements)
        else:
            request.raw_input_contents.append(tensor.raw)
    return request


def response_of(outputs: list[Tensor], values: dict[str, Any], response_id: str = "") -> Any:
    response = message("inference.ModelInferResponse")(model_name="m", model_version="2", id=response_id)
    set_parameters(response.parameters, values)
    for tensor in outputs:
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(tensor.raw)
    return response


def serialised(name: str, text: str) -> bytes:
    """Serialize a message given in protobuf's text format."""
    return bytes(text_format.Parse(text, message(name)()).SerializeToString(deterministic=True))
