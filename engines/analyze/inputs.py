"""The requests of an analysis: generated from the model's configuration, or read from a file; tensors in binary.

Source: the binary tensor data extension of Triton's HTTP/REST protocol.
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson

from engines.analyze.models import AnalyzeError
from gateway.protocol.datatypes import ELEMENT_BYTES

# Requests that differ, so that no cache answers them; sent in turn.
NUM_GENERATED = 16
# The size of an axis of any length without --shape.
_ANY_LENGTH = 1
_TEXT = b"The quick brown fox jumps over the lazy dog."
# Small enough for every integer type, and for the vocabulary of every language model.
_MAX_INTEGER = 100

_CODES = {"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"}
_CODES |= {"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d"}


@dataclass(frozen=True, slots=True)
class InputTensor:
    """One input: its shape with the batch first where the model batches, its data in the protocol's bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class RequestBody:
    """One request's body: JSON of `json_bytes` bytes, then the tensors."""

    data: bytes
    json_bytes: int


def body_of(tensors: Sequence[InputTensor]) -> RequestBody:
    """A request with all outputs in binary."""
    declared = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
            "parameters": {"binary_data_size": len(tensor.data)},
        }
        for tensor in tensors
    ]
    head = orjson.dumps({"inputs": declared, "parameters": {"binary_data_output": True}})
    return RequestBody(head + b"".join(tensor.data for tensor in tensors), len(head))


def generate(config: Mapping[str, Any], batch: int, shapes: Mapping[str, tuple[int, ...]]) -> list[RequestBody]:
    """Requests with random values for a model's inputs, always the same ones.

    `shapes` gives the dims of inputs, without the batch. Raises: AnalyzeError for a name that is no input, or dims that
    the input does not have.
    """
    inputs = [one for one in config.get("input", ()) if not one.get("optional")]
    for name in shapes.keys() - {one["name"] for one in inputs}:
        names = ", ".join(one["name"] for one in inputs)
        raise AnalyzeError(f"--shape names {name!r}, which is no input of the model; its inputs: {names}")
    generator = random.Random(0)
    lead = (batch,) if int(config.get("max_batch_size", 0)) else ()
    return [
        body_of([_random_tensor(one, lead, shapes.get(one["name"]), generator) for one in inputs])
        for _ in range(NUM_GENERATED)
    ]


def open_axes(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The inputs with an axis of any length that `shapes` lacks: they get length 1."""
    return [
        one["name"]
        for one in config.get("input", ())
        if one["name"] not in shapes and any(int(dim) < 0 for dim in one["dims"]) and not one.get("optional")
    ]


def read(path: Path) -> list[RequestBody]:
    """Requests of a file: one V2 inference request as JSON, or a list of them, with `data` as (nested) lists.

    Raises: AnalyzeError.
    """
    try:
        content = orjson.loads(path.read_bytes())
    except OSError as error:
        raise AnalyzeError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise AnalyzeError(f"{path} is not JSON: {error}") from error
    requests = content if isinstance(content, list) else [content]
    bodies = [_read_request(request, f"{path}, request {number}") for number, request in enumerate(requests)]
    if not bodies:
        raise AnalyzeError(f"{path} has no request: write one V2 inference request, or a list of them")
    return bodies


def pack(datatype: str, values: Sequence[Any]) -> bytes:
    """Elements in the protocol's bytes. Raises: ValueError, TypeError for values that the datatype does not have."""
    if datatype == "BYTES":
        texts = [value.encode() if isinstance(value, str) else bytes(value) for value in values]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    try:
        if datatype == "BF16":  # the upper half of an FP32
            singles = struct.pack(f"<{len(values)}f", *values)
            return b"".join(singles[place + 2 : place + 4] for place in range(0, len(singles), 4))
        return struct.pack(f"<{len(values)}{_CODES[datatype]}", *values)
    except KeyError:
        raise ValueError(f"unknown datatype {datatype!r}") from None
    except (struct.error, OverflowError) as error:
        raise ValueError(str(error)) from error


def _random_tensor(
    declared: Mapping[str, Any], lead: tuple[int, ...], dims: tuple[int, ...] | None, generator: random.Random
) -> InputTensor:
    datatype = str(declared["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
    sizes = tuple(int(dim) for dim in declared["dims"])
    if dims is None:
        dims = tuple(_ANY_LENGTH if dim < 0 else dim for dim in sizes)
    if len(dims) != len(sizes) or any(size not in (-1, dim) for size, dim in zip(sizes, dims, strict=True)):
        raise AnalyzeError(
            f"--shape {declared['name']}:{_listed(dims)} does not fit the input, whose dims are {_listed(sizes)}"
        )
    shape = (*lead, *dims)
    return InputTensor(declared["name"], datatype, shape, _random_data(datatype, prod(shape), generator))


def _random_data(datatype: str, num_elements: int, generator: random.Random) -> bytes:
    if datatype == "BYTES":
        return pack(datatype, [_TEXT] * num_elements)
    if datatype == "FP32":
        return array("f", (generator.random() for _ in range(num_elements))).tobytes()
    if datatype in ("FP16", "FP64", "BF16"):
        return pack(datatype, [generator.random() for _ in range(num_elements)])
    if datatype == "BOOL":
        return pack(datatype, [generator.random() < 0.5 for _ in range(num_elements)])
    if datatype not in ELEMENT_BYTES:
        raise AnalyzeError(f"inputs of datatype {datatype} cannot be generated: give requests by --input-file")
    return pack(datatype, [generator.randrange(_MAX_INTEGER) for _ in range(num_elements)])


def _read_request(request: Any, where: str) -> RequestBody:
    try:
        return body_of([_read_tensor(declared) for declared in request["inputs"]])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        form = '{"inputs": [{"name": ..., "datatype": ..., "shape": [...], "data": [...]}]}'
        raise AnalyzeError(f"{where}: {what}; a request is {form}") from error


def _read_tensor(declared: Mapping[str, Any]) -> InputTensor:
    shape = tuple(int(dim) for dim in declared["shape"])
    values = list(_flat(declared["data"]))
    if len(values) != prod(shape):
        raise ValueError(f"input {declared['name']!r} has {len(values)} elements, its shape {prod(shape)}")
    return InputTensor(declared["name"], declared["datatype"], shape, pack(declared["datatype"], values))


def _flat(data: Any) -> Iterator[Any]:
    if not isinstance(data, list):
        yield data
        return
    for item in data:
        yield from _flat(item)


def _listed(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))
