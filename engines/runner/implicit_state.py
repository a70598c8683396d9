"""Implicit state: what a model wants to find again at a sequence's next step, kept where the model runs.

Source: Triton's "Implicit State Management"; model_config.proto, ModelSequenceBatching.State.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engines.backends.interfaces import Array, numpy_datatype
from engines.core.errors import invalid
from engines.runner.arrays import decode_bytes
from gateway.protocol.datatypes import config_datatype


@dataclass(frozen=True, slots=True)
class StateRule:
    """One state: the input that it comes by, the output that it goes by, and what it is at first."""

    input_name: str
    output_name: str
    first: Array


class States:
    """The states of every sequence that is under way, by the sequence's key."""

    def __init__(self, config: Any, directory: Path) -> None:
        batches = config.max_batch_size > 0
        self.rules = tuple(_rule(state, batches, directory) for state in config.sequence_batching.state)
        self.outputs = {rule.output_name: rule.input_name for rule in self.rules}
        self._kept: dict[str, dict[str, Array]] = {}

    def inputs(self, key: str, *, is_start: bool, sequence: int | str = 0) -> dict[str, Array]:
        """The inputs that a sequence's state adds to a step; `sequence` is its id."""
        if is_start:
            self._kept.pop(key, None)
        kept = self._kept.get(key, {})
        return {rule.input_name: kept.get(rule.input_name, rule.first).copy() for rule in self.rules}

    def keep(self, key: str, outputs: dict[str, Array], *, sequence: int | str = 0, is_end: bool = False) -> None:
        """A step's new state, by the names of its outputs; of a step without a key, which is of no sequence, none."""
        if not key:
            return
        kept = self._kept.setdefault(key, {})
        for name, array in outputs.items():
            kept[self.outputs[name]] = array.copy()

    def drop(self, key: str) -> None:
        """The sequence is over."""
        self._kept.pop(key, None)

    def __len__(self) -> int:
        return len(self._kept)


def _rule(state: Any, batches: bool, directory: Path) -> StateRule:
    """Raises: EngineError where the first state's file is not there, or not of its size."""
    initial = state.initial_state[0] if state.initial_state else None
    source = state if initial is None else initial
    datatype = config_datatype(source.data_type)
    # Axes that are open are of size 1 at first.
    shape = (1,) * batches + tuple(1 if dim == -1 else dim for dim in source.dims)
    if initial is not None and initial.data_file:
        first = _from_file(directory / "initial_state" / initial.data_file, datatype, shape)
    elif datatype == "BYTES":
        first = np.full(shape, b"", object)
    else:
        first = np.zeros(shape, numpy_datatype(datatype))
    return StateRule(state.input_name, state.output_name, first)


def _from_file(path: Path, datatype: str, shape: tuple[int, ...]) -> Array:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise invalid(f"failed to read the initial state from '{path}': {error.strerror}") from error
    if datatype == "BYTES":
        return decode_bytes(data, shape)
    dtype = numpy_datatype(datatype)
    if len(data) != prod(shape) * dtype.itemsize:
        raise invalid(f"the initial state in '{path}' has {len(data)} bytes, {prod(shape) * dtype.itemsize} are wanted")
    return np.frombuffer(data, dtype).reshape(shape)
