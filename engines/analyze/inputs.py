"""The requests of an analysis: generated from the model's configuration, or read from a file; tensors in binary.

Source: the binary tensor data extension of Triton's HTTP/REST protocol.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import orjson

from engines.analyze.models import AnalyzeError
from gateway.protocol.conversion.tensors import flatten, raw_of_elements
from gateway.protocol.datatypes import ELEMENT_BYTES

# Requests that differ, so that no cache answers them; sent in turn.
NUM_GENERATED = 16
# The size of an axis of any length without --shape.
_ANY_LENGTH = 1
_TEXT = "The quick brown fox jumps over the lazy dog."
# Small enough for every integer type, and for the vocabulary of every language model.
_MAX_INTEGER = 100


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
    """Requests with random values for a model's inputs, always the same ones. `shapes` gives the dims of inputs,
    without the batch. Raises: AnalyzeError for a name that is no input, or dims that the input does not have."""
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
    """Requests of a file: one V2 inference request as JSON, or a list of them, with `data` as (nested) lists. Raises:
    AnalyzeError."""
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
    elements: list[Any]
    if datatype == "BYTES":
        elements = [_TEXT] * num_elements
    elif datatype in ("FP16", "FP32", "FP64", "BF16"):
        elements = [generator.random() for _ in range(num_elements)]
    elif datatype == "BOOL":
        elements = [generator.random() < 0.5 for _ in range(num_elements)]
    elif datatype in ELEMENT_BYTES:
        elements = [generator.randrange(_MAX_INTEGER) for _ in range(num_elements)]
    else:
        raise AnalyzeError(f"inputs of datatype {datatype} cannot be generated: give requests by --input-file")
    return raw_of_elements(datatype, elements)


def _read_request(request: Any, where: str) -> RequestBody:
    try:
        return body_of([_read_tensor(declared) for declared in request["inputs"]])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        form = '{"inputs": [{"name": ..., "datatype": ..., "shape": [...], "data": [...]}]}'
        raise AnalyzeError(f"{where}: {what}; a request is {form}") from error


def _read_tensor(declared: Mapping[str, Any]) -> InputTensor:
    name, datatype = declared["name"], declared["datatype"]
    shape = tuple(int(dim) for dim in declared["shape"])
    values = flatten(declared["data"])
    if len(values) != prod(shape):
        raise ValueError(f"input {name!r} has {len(values)} elements, its shape {prod(shape)}")
    data = raw_of_elements(datatype, values)
    if "INT" in datatype:
        is_signed, bits = datatype.startswith("INT"), 8 * ELEMENT_BYTES[datatype]
        low, high = -(is_signed << bits - 1), (1 << bits - is_signed) - 1
        if not all(low <= value <= high for value in values):
            raise ValueError(f"input {name!r}: {datatype} requires {low} <= number <= {high}")
    return InputTensor(name, datatype, shape, data)


def _listed(dims: Sequence[int]) -> str:
    return ",".join(map(str, dims))
