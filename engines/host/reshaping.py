"""Tensors whose shapes differ between the model and its clients (`reshape` in a configuration).

Source: Triton core `src/infer_request.cc` Normalize, `src/infer_response.cc` Output::Reshape; the configuration's
`ModelTensorReshape`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engines.core.messages import TensorData


@dataclass(frozen=True, slots=True)
class Reshape:
    """From one form of a tensor to the other; both are without the batch's axis, -1 stands for any size."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    has_batches: bool

    def __call__(self, tensor: TensorData) -> TensorData:
        shape = tensor.shape
        batch, dims = (shape[:1], shape[1:]) if self.has_batches else ((), shape)
        if len(dims) != len(self.before):
            return tensor  # a model that answers what it did not promise
        sizes = iter([size for size, expected in zip(dims, self.before, strict=True) if expected == -1])
        return replace(tensor, shape=(*batch, *(next(sizes) if size == -1 else size for size in self.after)))


class Reshapes:
    """Those of one model."""

    def __init__(self, config: Any) -> None:
        has_batches = config.max_batch_size > 0
        self._inputs = {
            io.name: Reshape(tuple(io.dims), tuple(io.reshape.shape), has_batches)
            for io in config.input
            if io.HasField("reshape")
        }
        self._outputs = {
            io.name: Reshape(tuple(io.reshape.shape), tuple(io.dims), has_batches)
            for io in config.output
            if io.HasField("reshape")
        }

    def __bool__(self) -> bool:
        return bool(self._inputs or self._outputs)

    def inputs(self, tensors: Sequence[TensorData]) -> tuple[TensorData, ...]:
        """As the model takes them."""
        return _reshaped(self._inputs, tensors)

    def outputs(self, tensors: Sequence[TensorData]) -> tuple[TensorData, ...]:
        """As clients get them."""
        return _reshaped(self._outputs, tensors)


def _reshaped(reshapes: Mapping[str, Reshape], tensors: Sequence[TensorData]) -> tuple[TensorData, ...]:
    return tuple(reshapes[tensor.name](tensor) if tensor.name in reshapes else tensor for tensor in tensors)
