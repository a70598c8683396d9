"""One run for several requests: inputs laid end to end along the batch axis, outputs cut apart again.

Requests that cannot run together (other shapes, other datatypes, inputs left out) run one after another, and where a
run of several fails each of them gets a run of its own: a request fails for what is wrong with itself alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engines.backends.interfaces import Array, BackendRequest, numpy_datatype
from engines.backends.signature import ModelSignature, TensorSpec
from engines.core.errors import EngineError, ErrorCode, internal, invalid

# Runs the model: its inputs by name, to its outputs by name. Outputs that nobody knows are left alone.
Run = Callable[[dict[str, Array]], Mapping[str, Array]]
# How many rows a batch is padded to: the size of the bucket for so many rows, which is not smaller.
Capacity = Callable[[int], int]


# What a backend makes of a request's inputs before they are laid together. Raises: EngineError.
Prepare = Callable[[Mapping[str, Array]], Mapping[str, Array]]


@dataclass(slots=True)
class _Member:
    """A request in a batch: its inputs as prepared, and its rows (0: the model has no batch axis)."""

    request: BackendRequest
    inputs: Mapping[str, Array]
    rows: int


@dataclass(frozen=True, slots=True)
class Batcher:
    """How a model's batches are run. `failure` stands before what the model raises."""

    run: Run
    signature: ModelSignature
    failure: str = "failed to run the model"
    capacity: Capacity | None = None
    prepare: Prepare | None = None

    def execute(self, requests: Sequence[BackendRequest]) -> None:
        """Answer each of the requests, with as few runs as their shapes allow."""
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
            # A model without a batch axis takes one request at a time.
            key = _kind(inputs) if rows else id(request)
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
        room = self.capacity(total) if self.capacity and total else total
        outputs = self.run({name: join([member.inputs[name] for member in group], room) for name in group[0].inputs})
        starts = np.cumsum([0, *(member.rows for member in group)]).tolist()
        answers: list[dict[str, Array]] = [{} for _ in group]
        for name, tensor in self.signature.output_by_name.items():
            is_state = name in self.signature.state_names
            wanted_by = [is_state or not member.request.wanted or name in member.request.wanted for member in group]
            if not any(wanted_by):
                continue
            if name not in outputs:
                raise internal(f"output tensor '{name}' is not found in what the model returned")
            array = checked(outputs[name], tensor, room if total else None)
            for index, is_wanted in enumerate(wanted_by):
                if is_wanted:
                    answers[index][name] = array[starts[index] : starts[index + 1]] if total else array
        return answers


def _kind(inputs: Mapping[str, Array]) -> tuple[Any, ...]:
    """What requests must have in common to run together."""
    return tuple(sorted((name, array.shape[1:], array.dtype.char) for name, array in inputs.items()))


def rows_of(inputs: Mapping[str, Array], signature: ModelSignature) -> int:
    """How many rows a request brings to a batch; 0 where the model has no batch axis.

    Raises: EngineError where there are none, where inputs do not agree about it, or where they are not of the model's
    shapes and datatypes.
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


def join(arrays: Sequence[Array], room: int) -> Array:
    """Arrays end to end along their first axis, the last row repeated up to `room` rows; one that needs nothing is
    itself, not a copy. Room for none leaves the first as it is (a model without a batch axis)."""
    total = sum(len(array) for array in arrays) if room else 0
    if len(arrays) == 1 and room == total:
        return arrays[0]
    first = arrays[0]
    joined = np.empty((room, *first.shape[1:]), first.dtype)
    at = 0
    for array in arrays:
        joined[at : at + len(array)] = array
        at += len(array)
    if at < room:
        joined[at:] = arrays[-1][-1:] if at else 0
    return joined


def checked(array: Array, tensor: TensorSpec, rows: int | None) -> Array:
    """A model's output, if it is what the configuration says. `rows` is the batch it ran with, None without one.

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
    """Buckets of 1, 2, 4, ... rows; the last one is `limit` itself where it is no power of two."""

    def capacity(rows: int) -> int:
        if rows >= limit:
            return rows
        return min(1 << (rows - 1).bit_length(), limit)

    return capacity
