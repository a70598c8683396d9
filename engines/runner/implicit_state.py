"""Implicit state: values that a model receives again at a sequence's next step, stored in its process or in a state
store.

Source: Triton's "Implicit State Management"; model_config.proto, ModelSequenceBatching.State.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from engines.backends.interfaces import InstanceSpec
from engines.core.datatypes import Array, numpy_datatype
from engines.core.errors import EngineError, invalid, unavailable
from engines.ipc.arrays import decode_bytes
from engines.state.factory import LOCAL, folder_digest, open_store, read_seconds, read_secret, resolve
from engines.state.interfaces import Part, State, StateStore, ValueKind
from engines.state.local_store import LocalStateStore
from gateway.protocol.datatypes import config_datatype


@dataclass(frozen=True, slots=True)
class StateRule:
    """One state: its input, its output, and its initial value."""

    input_name: str
    output_name: str
    first: Array


class States:
    """The states of every sequence that is under way, by the sequence's key."""

    def __init__(self, config: Any, directory: Path) -> None:
        batches = config.max_batch_size > 0
        self.rules = tuple(_rule(state, batches, directory) for state in config.sequence_batching.state)
        self.outputs = {rule.output_name: rule.input_name for rule in self.rules}
        self._states: dict[str, dict[str, Array]] = {}

    def inputs(self, key: str, *, is_start: bool, sequence: int | str = 0) -> dict[str, Array]:
        """The inputs that a sequence's state adds to a step; `sequence` is its id."""
        if is_start:
            self._states.pop(key, None)
        states = self._states.get(key, {})
        return {rule.input_name: states.get(rule.input_name, rule.first).copy() for rule in self.rules}

    def keep(self, key: str, outputs: dict[str, Array], *, sequence: int | str = 0, is_end: bool = False) -> None:
        """A step's new state, by the names of its outputs; of a step without a key, which is of no sequence, none."""
        if not key:
            return
        states = self._states.setdefault(key, {})
        for name, array in outputs.items():
            states[self.outputs[name]] = array.copy()

    def drop(self, key: str) -> None:
        self._states.pop(key, None)

    def __len__(self) -> int:
        return len(self._states)


def _rule(state: Any, batches: bool, directory: Path) -> StateRule:
    """Raises: EngineError if the first state's file is not there, or not of its size."""
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


STORE, TTL, DEADLINE, SECRET = "STATE_STORE", "STATE_TTL", "STATE_DEADLINE", "STATE_SECRET_FILE"
_PREFIX = "pointsman:1:state"


class StoredStates(States):
    """As `States`, by the sequence's own id."""

    def __init__(self, config: Any, directory: Path, store: StateStore, model: str) -> None:
        """`model` separates the model's states from all others."""
        super().__init__(config, directory)
        for state in config.sequence_batching.state:
            if config_datatype(state.data_type) == "BYTES":
                raise invalid(f"{STORE}: the state '{state.input_name}' is of strings, and a store keeps numbers alone")
        self._store = store
        facts = [[rule.input_name, rule.first.dtype.name, list(rule.first.shape)] for rule in self.rules]
        self._prefix = f"{_PREFIX}:{hashlib.sha256(json.dumps([model, facts]).encode()).hexdigest()}"
        self._arrays: dict[str, dict[str, Array]] = {}  # of each sequence: the states of its last step here

    def inputs(self, key: str, *, is_start: bool, sequence: int | str = 0) -> dict[str, Array]:
        """Raises: EngineError if the store lacks the state of a running sequence, or does not respond."""
        if is_start or not key:
            arrays = {rule.input_name: rule.first.copy() for rule in self.rules}
        else:
            arrays = self._stored(sequence)
        if key:
            self._arrays[key] = arrays
        return arrays

    def keep(self, key: str, outputs: dict[str, Array], *, sequence: int | str = 0, is_end: bool = False) -> None:
        """Raises: EngineError if the state is not stored."""
        if not key:
            return
        arrays = self._arrays.setdefault(key, {})
        arrays |= {self.outputs[name]: array for name, array in outputs.items()}
        name = self._key(sequence)
        if is_end:
            self._store.delete([name])
            return
        parts = tuple(_part(arrays[rule.input_name]) for rule in self.rules)
        if not self._store.write(name, State(ValueKind.SEQUENCE, parts)):
            raise unavailable(
                f"the state of sequence {sequence} cannot be kept, so that this step counts for nothing: the store of "
                "states does not take it; ask the step again"
            )

    def drop(self, key: str) -> None:
        self._arrays.pop(key, None)

    def __len__(self) -> int:
        return len(self._arrays)

    def _stored(self, sequence: int | str) -> dict[str, Array]:
        counts = self._store.counts
        before = counts.failures + counts.skipped
        (state,) = self._store.get([self._key(sequence)])
        if state is None and counts.failures + counts.skipped > before:
            raise unavailable(f"the store of states does not tell the state of sequence {sequence}: ask again")
        if state is None or len(state.parts) != len(self.rules):
            raise invalid(
                f"inference request for sequence {sequence} must specify the START flag: its state is not in the store"
            )
        return {rule.input_name: _array(part) for rule, part in zip(self.rules, state.parts, strict=True)}

    def _key(self, sequence: int | str) -> str:
        return f"{self._prefix}:{'n' if isinstance(sequence, int) else 't'}{sequence}"


def states_of(spec: InstanceSpec) -> States:
    """The states of an instance, in the configured store. Raises: EngineError that names the parameter and its valid
    values."""
    texts = {name: parameter.string_value for name, parameter in spec.config.parameters.items()}
    if STORE not in texts or not spec.config.sequence_batching.state:
        return States(spec.config, spec.directory)
    return StoredStates(
        spec.config,
        spec.directory,
        _store(texts, spec.directory),
        f"{spec.model} {folder_digest(spec.version_directory)}",
    )


def _store(texts: Mapping[str, str], directory: Path) -> StateStore:
    url = resolve(texts[STORE]) or LOCAL
    if url == LOCAL:
        return _of_this_process()
    seconds = {}
    for name, default in ((TTL, "24h"), (DEADLINE, "1s")):
        try:
            seconds[name] = read_seconds(texts.get(name, default))
        except ValueError as error:
            raise invalid(f"the parameter {name} is '{texts[name]}', and has to be {error}") from None
    secret = read_secret((directory / texts[SECRET]).expanduser()) if texts.get(SECRET) else None
    try:
        return open_store(url, secret=secret, ttl_seconds=seconds[TTL], deadline_seconds=seconds[DEADLINE])
    except EngineError as error:
        raise invalid(f"the parameter {STORE}: {error.message}") from error


@cache
def _of_this_process() -> LocalStateStore:
    """One for all instances here: a sequence may move between them."""
    return LocalStateStore()


def _part(array: Array) -> Part:
    contiguous = np.ascontiguousarray(array)
    return Part(contiguous.dtype.name, array.shape, contiguous.tobytes())


def _array(part: Part) -> Array:
    array: Array = np.frombuffer(part.data, part.dtype).reshape(part.shape).copy()
    return array
