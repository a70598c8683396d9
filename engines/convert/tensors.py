"""The tensors of a conversion: shapes, datatypes, random inputs; its errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engines.core.datatypes import numpy_datatype


class ConversionError(Exception):
    """A conversion that cannot be done; `advice` is what can be done instead, if anything."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice


def first_line(error: BaseException) -> str:
    """The first line of a framework's error: a graph or a tensor may follow."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


Array = npt.NDArray[Any]
Shape = tuple[int, ...]

_SHAPE = re.compile(r"^([A-Za-z_]\w*)=(\d+(?:[,x]\d+)*)(?::([A-Z0-9]+))?$")
# What CoreML computes with, by what a model takes: it has no 64-bit numbers and no booleans.
COREML_DATATYPES = {
    **dict.fromkeys(("FP32", "FP64", "FP16", "BF16"), "FP32"),
    **dict.fromkeys(("INT32", "INT64", "INT16", "INT8", "UINT8", "BOOL"), "INT32"),
}


@dataclass(frozen=True, slots=True)
class TensorShape:
    """A tensor. `dims` are without the batch axis; -1 where the size is open."""

    name: str
    datatype: str
    dims: Shape

    @property
    def coreml_datatype(self) -> str:
        """Raises: ConversionError where CoreML has nothing like it."""
        if self.datatype not in COREML_DATATYPES:
            raise ConversionError(f"'{self.name}' is {self.datatype}, which CoreML does not have")
        return COREML_DATATYPES[self.datatype]


def parse_shape(text: str) -> TensorShape:
    """`image=3,224,224` or `ids=128:INT64`: a name, the shape without the batch, and a datatype (FP32 unless said).
    Raises: ConversionError."""
    match = _SHAPE.match(text)
    if match is None:
        raise ConversionError(
            f"--shape {text}: has to be NAME=SIZE,SIZE,... with :DATATYPE after it where it is not FP32"
        )
    name, dims, datatype = match.groups()
    tensor = TensorShape(name, datatype or "FP32", tuple(int(size) for size in re.split("[,x]", dims)))
    _ = tensor.coreml_datatype
    return tensor


def with_sizes(inputs: Sequence[TensorShape], extra_shapes: Sequence[TensorShape]) -> list[TensorShape]:
    """Inputs with the sizes that were given for them. Raises: ConversionError where a size is left open, or one is
    given for an input that is not there."""
    by_name = {tensor.name: tensor for tensor in extra_shapes}
    if not inputs:
        return list(extra_shapes)
    names = [tensor.name for tensor in inputs]
    for name in by_name:
        if name not in names:
            raise ConversionError(f"--shape {name}: the model has no such input, it has {', '.join(names)}")
    sized = [replace(tensor, dims=by_name[tensor.name].dims) if tensor.name in by_name else tensor for tensor in inputs]
    for tensor in sized:
        if any(size < 1 for size in tensor.dims):
            raise ConversionError(
                f"input '{tensor.name}' has an open size, {list(tensor.dims)}: CoreML wants fixed ones",
                f"say it: --shape {tensor.name}=" + ",".join(str(size) if size > 0 else "128" for size in tensor.dims),
            )
    return sized


def full_shape(tensor: TensorShape, rows: int) -> Shape:
    """With the batch axis; `rows` is 0 for a model without."""
    return (rows, *tensor.dims) if rows else tensor.dims


def random_inputs(tensors: Sequence[TensorShape], rows: int, seed: int = 0) -> dict[str, Array]:
    """Inputs to try a model with: standard normal numbers, and small whole numbers (valid indices)."""
    random = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for tensor in tensors:
        shape = full_shape(tensor, rows)
        if tensor.coreml_datatype == "FP32":
            dtype = np.dtype(np.float32) if tensor.datatype == "BF16" else numpy_datatype(tensor.datatype)
            arrays[tensor.name] = random.standard_normal(shape).astype(dtype)
        else:
            arrays[tensor.name] = random.integers(0, 2, shape).astype(numpy_datatype(tensor.datatype))
    return arrays
