"""What sequences were told, in the memory of a worker that has no Redis.

The only worker of a gateway sees all requests of a sequence. Several do not see each other's, and so keep none.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable

from gateway.config.specs import ReplaySpec
from gateway.protocol.sequence import Sequence
from gateway.sessions.sequence_log import IN_DOUBT, Input, Inputs, too_much

_MAX_BYTES = 64 * 1024 * 1024
_MAX_SEQUENCES = 10_000

_NOT_STARTED = "its start was not seen, or is forgotten"
_SEVERAL_WORKERS = "a gateway of several workers keeps none without Redis"
_TOO_MUCH = f"without Redis a worker keeps {_MAX_SEQUENCES} sequences and {_MAX_BYTES} bytes, and others came later"


class LocalInputs:
    """Keeps the inputs of the sequences that were used last: see `InputKeeper`."""

    def __init__(self, num_workers: int = 1, *, max_bytes: int = _MAX_BYTES) -> None:
        self._is_alone = num_workers == 1
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, Inputs] = OrderedDict()
        self._size = 0

    def __repr__(self) -> str:
        return f"<LocalInputs {len(self._known)} sequences, {self._size} bytes>"

    def number_at_once(self, sequence: Sequence, spec: ReplaySpec) -> bool:
        if not self._is_alone:
            sequence.step, sequence.unkept = 0, _SEVERAL_WORKERS
            return True
        if sequence.starts:
            self._drop(sequence.name)
            self._known[sequence.name] = Inputs(f"{random.getrandbits(64):x}")
            if len(self._known) > _MAX_SEQUENCES:
                self._drop(next(iter(self._known)))
        known = self._known.get(sequence.name)
        if known is None:
            sequence.step, sequence.unkept = 0, _NOT_STARTED
            return True
        self._known.move_to_end(sequence.name)
        known.steps += 1
        sequence.step, sequence.run = known.steps, known.run
        return True

    def number(self, sequence: Sequence, spec: ReplaySpec, done: Callable[[], None]) -> None:
        self.number_at_once(sequence, spec)
        done()

    def keep(self, sequence: Sequence, spec: ReplaySpec, told: Input | None) -> None:
        self._keep(sequence, spec, bytes(told) if told is not None else b"")

    def doubt(self, sequence: Sequence, spec: ReplaySpec) -> None:
        self._keep(sequence, spec, IN_DOUBT)

    def give_up(self, sequence: Sequence, spec: ReplaySpec, why: str) -> None:
        known = self._known.get(sequence.name)
        if known is not None and known.run == sequence.run:
            self._drop_inputs(known, why)

    def forget(self, sequence: Sequence) -> None:
        known = self._known.get(sequence.name)
        if known is not None and known.run == sequence.run:
            self._drop(sequence.name)

    async def before(self, sequence: Sequence, patience: float) -> list[Input]:
        return (self._known.get(sequence.name) or Inputs()).before(sequence)

    async def place(self, sequence: Sequence, engine: str, url: str, spec: ReplaySpec) -> None:
        """There is nobody else to read it."""

    def _keep(self, sequence: Sequence, spec: ReplaySpec, data: bytes) -> None:
        known = self._known.get(sequence.name)
        if known is None or known.run != sequence.run or known.why or not sequence.step:
            return
        why = too_much(spec, sequence.step, known.size + len(data))
        if why:
            self._drop_inputs(known, why)
            return
        known.kept[sequence.step] = data
        known.size += len(data)
        self._size += len(data)
        while self._size > self._max_bytes:
            self._drop_inputs(next(each for each in self._known.values() if each.size), _TOO_MUCH)

    def _drop_inputs(self, known: Inputs, why: str) -> None:
        self._size -= known.size
        known.size = 0
        known.kept.clear()
        known.why = why

    def _drop(self, name: str) -> None:
        known = self._known.pop(name, None)
        if known is not None:
            self._size -= known.size
