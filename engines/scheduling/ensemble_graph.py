"""An ensemble as a graph: which steps need a tensor, and which steps a request needs.

Source: model_config.proto (ModelEnsembling); Triton core `ensemble_scheduler.cc` (EnsembleContext).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Step:
    """One model of an ensemble. `inputs` and `outputs`: the ensemble's tensor for each of the model's."""

    number: int
    model: str
    version: str  # "" is what the model's policy says
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
        self._made_by = {tensor: step for step in self.steps for tensor in step.outputs.values()}
        self._all = self._users(self.dims)

    def needed(self, wanted: Collection[str]) -> Mapping[str, list[Step]]:
        """For each tensor the steps that use it, without those steps on which no wanted output depends."""
        return self._all if self.dims.keys() <= set(wanted) else self._users(wanted)

    def _users(self, wanted: Collection[str]) -> dict[str, list[Step]]:
        needed: set[int] = set()
        tensors = [name for name in wanted if name in self._made_by]
        while tensors:
            step = self._made_by[tensors.pop()]
            if step.number not in needed:
                needed.add(step.number)
                tensors.extend(name for name in step.inputs.values() if name in self._made_by)
        users: dict[str, list[Step]] = {name: [] for name in self.inputs | self._made_by.keys()}
        for number in sorted(needed):
            for tensor in dict.fromkeys(self.steps[number].inputs.values()):
                users.setdefault(tensor, []).append(self.steps[number])
        return users
