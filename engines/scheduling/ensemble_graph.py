"""An ensemble as a graph: which steps need a tensor, and which steps a request needs.

Source: model_config.proto (ModelEnsembling); Triton core `ensemble_scheduler.cc` (EnsembleContext).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.core.messages import TensorData


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an ensemble. `inputs` and `outputs`: the ensemble's tensor for each of the model's."""

    number: int
    model: str
    version: str  # "": the model's policy chooses
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


class Graph:
    """`dims` are those of the ensemble's outputs, without a batch axis; `optional` its inputs that may be missing."""

    def __init__(self, config: Any) -> None:
        self.name: str = config.name
        self.steps = [
            Step(
                number,
                step.model_name,
                "" if step.model_version < 0 else str(step.model_version),
                dict(sorted(step.input_map.items())),
                dict(sorted(step.output_map.items())),
            )
            for number, step in enumerate(config.ensemble_scheduling.step)
        ]
        self.inputs = {tensor.name for tensor in config.input}
        self.optional = {tensor.name for tensor in config.input if tensor.optional}
        self.dims = {
            tensor.name: tuple(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
            for tensor in config.output
        }
        self._producers = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        self._all = self._users(self.dims)

    def needed(self, wanted: Collection[str]) -> Mapping[str, list[Step]]:
        """For each tensor the steps that use it, without the steps on which no requested output depends."""
        return self._all if self.dims.keys() <= set(wanted) else self._users(wanted)

    def _users(self, wanted: Collection[str]) -> dict[str, list[Step]]:
        needed: set[int] = set()
        tensors = [name for name in wanted if name in self._producers]
        while tensors:
            step = self._producers[tensors.pop()]
            if step.number not in needed:
                needed.add(step.number)
                tensors.extend(name for name in step.inputs.values() if name in self._producers)
        users: dict[str, list[Step]] = {name: [] for name in self.inputs | self._producers.keys()}
        for number in sorted(needed):
            for tensor in dict.fromkeys(self.steps[number].inputs.values()):
                users.setdefault(tensor, []).append(self.steps[number])
        return users


@dataclass(frozen=True, slots=True)
class SequencePosition:
    sequence_id: int | str
    is_start: bool
    is_end: bool


class EnsembleTensor:
    """One tensor. `tensor` is None if an optional one is missing; `position` None for inputs of the ensemble."""

    __slots__ = ("num_uses", "position", "tensor")

    def __init__(self, tensor: TensorData | None, position: SequencePosition | None, num_uses: int) -> None:
        self.tensor = tensor
        self.position = position
        self.num_uses = num_uses  # remaining uses; dropped after the last


class TensorSeries:
    """The tensors of one name. `rows` is the batch size of the model that writes them, 0 if it does not batch."""

    __slots__ = ("next_number", "num_uses", "rows", "tensors")

    def __init__(self, num_uses: int) -> None:
        self.num_uses = num_uses
        self.tensors: dict[int, EnsembleTensor] = {}
        self.next_number = 0
        self.rows = 0

    def add(self, tensor: TensorData | None, position: SequencePosition | None) -> int:
        number = self.next_number
        self.next_number += 1
        if self.num_uses:
            self.tensors[number] = EnsembleTensor(tensor, position, self.num_uses)
        return number

    def use(self, number: int) -> None:
        stored = self.tensors[number]
        stored.num_uses -= 1
        if not stored.num_uses:
            del self.tensors[number]


class EnsembleTensors:
    """The tensors of a request. `users` are the steps that need each; `wanted` the requested outputs."""

    __slots__ = ("_users", "_wanted", "series")

    def __init__(self, users: Mapping[str, list[Step]], wanted: Sequence[str]) -> None:
        self._users = users
        self._wanted = wanted
        self.series = {name: TensorSeries(len(steps) + (name in wanted)) for name, steps in users.items()}

    def ready_steps(self, new: Sequence[tuple[str, int]]) -> list[tuple[Step, int]]:
        """The steps that can run with these new tensors, and the number of the tensors they take."""
        ready = dict[tuple[int, int], tuple[Step, int]]()
        for name, number in new:
            for step in self._users[name]:
                if all(number in self.series[source].tensors for source in step.inputs.values()):
                    ready[step.number, number] = step, number
        return [ready[key] for key in sorted(ready)]

    def ready_answers(self, new: Sequence[tuple[str, int]]) -> list[int]:
        """The numbers of the responses that are complete with these tensors."""
        numbers = {number for name, number in new if name in self._wanted}
        return sorted(n for n in numbers if all(n in self.series[name].tensors for name in self._wanted))


def fitted(dims: Sequence[int], *, batches: bool, rows: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a tensor for a model (or the ensemble's response) that expects `dims`, without a batch axis. It
    changes only between models that batch and models that do not: an axis of 1 is added or removed."""
    if batches == (rows > 0):
        return shape
    fits = len(dims) == len(shape) and all(d in (-1, s) for d, s in zip(dims, shape, strict=True))
    if batches:
        return (1, *shape) if fits else shape
    return shape[1:] if not fits and rows == 1 else shape


class Gate:
    """Admits a limited number of requests to a step, in order."""

    __slots__ = ("_is_opening", "_limit", "_num_inside", "waiting")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_inside = 0
        self.waiting: deque[Callable[[], None]] = deque()
        self._is_opening = False

    def enter(self, go: Callable[[], None]) -> None:
        """Call `go` when a request may go to the step; `leave` follows when it has ended."""
        self.waiting.append(go)
        self._open()

    def leave(self) -> None:
        self._num_inside -= 1
        self._open()

    def _open(self) -> None:
        if self._is_opening:
            return  # `go` ended at once: the loop below continues
        self._is_opening = True
        try:
            while self.waiting and self._num_inside < self._limit:
                self._num_inside += 1
                self.waiting.popleft()()
        finally:
            self._is_opening = False
