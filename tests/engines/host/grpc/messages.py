"""Requests as protobuf messages, for the tests of the gRPC front."""

from __future__ import annotations

import struct
from typing import Any

from gateway.protocol.conversion.tensors import join_elements
from gateway.protocol.protobuf import Message, message


def request(model: str = "adder", **fields: Any) -> Message:
    """A request without tensors; `parameters` by name."""
    parameters = fields.pop("parameters", {})
    result = message("inference.ModelInferRequest")(model_name=model, **fields)
    for name, value in parameters.items():
        set_parameter(result.parameters[name], value)
    return result


def set_parameter(parameter: Message, value: Any) -> None:
    """A field of the value's type; of a tuple, the field that it names."""
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}
    if isinstance(value, tuple):
        field, value = value
    else:
        field = kinds[type(value)]
    setattr(parameter, field, value)


def adder(a: tuple[int, ...] = (1, 2), b: tuple[int, ...] = (10, 20), **fields: Any) -> Message:
    result = request("adder", **fields)
    for name, values in (("a", a), ("b", b)):
        result.inputs.add(name=name, datatype="INT32", shape=[1, len(values)])
        result.raw_input_contents.append(struct.pack(f"<{len(values)}i", *values))
    return result


def text(model: str, words: str, **fields: Any) -> Message:
    result = request(model, **fields)
    add(result, "text_input", "BYTES", [1], join_elements([words.encode()]))
    return result


def repeater(words: str, count: int, fail_after: int | None = None, **fields: Any) -> Message:
    result = text("repeater", words, **fields)
    add(result, "count", "INT32", [1], struct.pack("<i", count))
    if fail_after is not None:
        add(result, "fail_after", "INT32", [1], struct.pack("<i", fail_after))
    return result


def add(result: Message, name: str, datatype: str, shape: list[int], raw: bytes) -> None:
    result.inputs.add(name=name, datatype=datatype, shape=shape)
    result.raw_input_contents.append(raw)
