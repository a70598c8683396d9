"""One run for several requests: inputs are concatenated along the batch axis, outputs are split again.

Requests that differ in shapes, datatypes or optional inputs run one after another. If a run of several requests fails,
each of them runs alone: a request fails only for its own fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines.backends.interfaces import BackendRequest
from engines.backends.model_config import ModelSignature, TensorSpec
from engines.core.datatypes import Array, numpy_datatype
from engines.core.errors import EngineError, ErrorCode, internal, invalid

# Runs the model: inputs by name to outputs by name. Outputs that the signature lacks are ignored.
Run = Callable[[dict[str, Array]], Mapping[str, Array]]
# Rows to the rows of the smallest bucket that holds them.
Capacity = Callable[[int], int]
# Transforms a request's inputs before they are joined. Raises: EngineError.
Prepare = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(slots=True)
class _Member:
    """A request in a batch: its prepared inputs and its rows (0 without a batch axis)."""

    request: BackendRequest
    inputs: Mapping[str, Array]
    rows: int


@dataclass(frozen=True, slots=True)
class Batcher:
    """Runs a model's batches. `failure` is the prefix of the model's own errors."""

    run: Run
    signature: ModelSignature
    failure: str = "failed to run the model"
    capacity: Capacity | None = None
    prepare: Prepare | None = None

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Respond to every request, with as few runs as their shapes allow."""
        groups: dict[Any, list[_Member]] = {}
        for request in requests:
            if request.is_cancelled and not request.sequence_id:
                request.fail(EngineError(ErrorCode.CANCELLED, "inference request is cancelled"))
                continue
            try:
                rows = rows_of(request.inputs, self.signature)
                inputs = self.prepare(request.inputs) if self.prepare else request.inputs
            except EngineError as error:
                request.fail(error)
                continue
            key: Any = id(request)  # without a batch axis requests run one at a time
            if rows:
                key = tuple(sorted((name, array.shape[1:], array.dtype.char) for name, array in inputs.items()))
            groups.setdefault(key, []).append(_Member(request, inputs, rows))
        for group in groups.values():
            self._run_group(group)

    def _run_group(self, group: list[_Member]) -> None:
        try:
            answers = self._answers(group)
        except Exception as error:
            if len(group) > 1:
                for member in group:
                    self._run_group([member])
                return
            if not isinstance(error, EngineError):
                error = internal(f"{self.failure}: {error or type(error).__name__}")
            group[0].request.fail(error)
            return
        for member, outputs in zip(group, answers, strict=True):
            member.request.respond(outputs)

    def _answers(self, group: list[_Member]) -> list[dict[str, Array]]:
        total = sum(member.rows for member in group)
        num_rows = self.capacity(total) if self.capacity and total else total
        outputs = self.run(
            {name: join([member.inputs[name] for member in group], num_rows) for name in group[0].inputs}
        )
        starts = np.cumsum([0, *(member.rows for member in group)]).tolist()
        answers: list[dict[str, Array]] = [{} for _ in group]
        for name, tensor in self.signature.output_by_name.items():
            is_state = name in self.signature.state_names
            wanted_by = [is_state or not member.request.wanted or name in member.request.wanted for member in group]
            if not any(wanted_by):
                continue
            if name not in outputs:
                raise internal(f"output tensor '{name}' is not found in what the model returned")
            array = check_output(outputs[name], tensor, num_rows if total else None)
            for index, is_wanted in enumerate(wanted_by):
                if is_wanted:
                    answers[index][name] = array[starts[index] : starts[index + 1]] if total else array
        return answers


def rows_of(inputs: Mapping[str, Array], signature: ModelSignature) -> int:
    """The rows of a request; 0 if the model has no batch axis.

    Raises: EngineError if there are none, if the inputs disagree, or if their shapes or datatypes are not the model's.
    """
    rows: dict[int, str] = {}
    for name, array in inputs.items():
        tensor = signature.input_by_name.get(name)
        if tensor is not None and array.dtype != numpy_datatype(tensor.datatype):
            raise invalid(f"input '{name}' is of {array.dtype}, and the model expects {tensor.datatype}")
        shape = array.shape
        if signature.max_batch_size:
            if not shape or not shape[0]:
                raise invalid(f"input '{name}' is of shape {list(shape)}, which is no batch")
            rows[shape[0]] = name
            shape = shape[1:]
        if tensor is not None and not tensor.accepts(shape):
            raise invalid(f"unexpected shape for input '{name}': expected {_dims(tensor)}, got {list(shape)}")
    if len(rows) > 1:
        sizes = ", ".join(f"'{name}' has {size}" for size, name in rows.items())
        raise invalid(f"inputs differ in their batch size: {sizes}")
    if not signature.max_batch_size:
        return 0
    return next(iter(rows), 1)


def _dims(tensor: TensorSpec) -> str:
    return str(list(tensor.dims or ()))


def join(arrays: Sequence[Array], num_rows: int) -> Array:
    """Concatenate arrays along their first axis and repeat the last row up to `num_rows` rows. A single array of that
    length is returned, not copied; with 0 rows (no batch axis) the first array is."""
    total = sum(len(array) for array in arrays) if num_rows else 0
    if len(arrays) == 1 and num_rows == total:
        return arrays[0]
    first = arrays[0]
    joined = np.empty((num_rows, *first.shape[1:]), first.dtype)
    end = 0
    for array in arrays:
        joined[end : end + len(array)] = array
        end += len(array)
    if end < num_rows:
        joined[end:] = arrays[-1][-1:] if end else 0
    return joined


def check_output(array: Array, tensor: TensorSpec, rows: int | None) -> Array:
    """Return a model's output if its datatype and shape are the configuration's. `rows` is the batch size, or None.

    Raises: EngineError.
    """
    if array.dtype != numpy_datatype(tensor.datatype):
        raise internal(
            f"configuration expects datatype {tensor.datatype} for output '{tensor.name}', model provides {array.dtype}"
        )
    shape = array.shape
    if rows is not None:
        if not shape or shape[0] != rows:
            raise internal(f"output '{tensor.name}' is of shape {list(shape)}, which is no batch of {rows}")
        shape = shape[1:]
    if not tensor.accepts(shape):
        raise internal(f"unexpected shape for output '{tensor.name}': expected {_dims(tensor)}, got {list(shape)}")
    return array


def power_of_two(limit: int) -> Capacity:
    """Buckets of 1, 2, 4, ... rows up to `limit`."""

    def capacity(rows: int) -> int:
        if rows >= limit:
            return rows
        return min(1 << (rows - 1).bit_length(), limit)

    return capacity


class BatchedBackend:
    """A backend whose requests run in batches; `initialize` sets the batcher."""

    _batcher: Batcher

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        self._batcher.execute(requests)
