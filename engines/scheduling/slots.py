"""Where a running sequence lives: a slot of the batcher of its instance."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError
from engines.scheduling.interfaces import Instance

SequenceId = int | str


class Slot:
    """`queue` has the requests that wait for those before them; None stands where the sequence is over though no
    request has ended it."""

    __slots__ = ("batcher", "index", "is_advancing", "is_in_flight", "queue", "sequence_id", "state_key", "touched_ns")

    def __init__(self, batcher: SlotBatcher, index: int) -> None:
        self.batcher = batcher
        self.index = index
        self.sequence_id: SequenceId = 0
        self.queue: deque[InferenceCall | None] = deque()
        self.state_key: str | None = None  # of its implicit state, in the instance
        self.touched_ns = 0
        self.is_in_flight = False  # a request of it has gone to the dynamic batcher (oldest first)
        self.is_advancing = False

    def __repr__(self) -> str:
        return f"<Slot {self.batcher.instance.name}[{self.index}]: {self.sequence_id!r}, {len(self.queue)} waiting>"


class Sequences(Protocol):
    """The scheduler, as batchers see it."""

    def prepare(self, slot: Slot, call: InferenceCall) -> None: ...

    def release(self, slot: Slot, *, was_ended: bool) -> None: ...

    def lost(self, batcher: SlotBatcher) -> None: ...


class SlotBatcher(Protocol):
    """Makes batches of the sequences in the slots of one instance."""

    instance: Instance
    number: int
    slots: list[Slot]
    is_open: bool  # sequences may start here

    @property
    def num_pending(self) -> int: ...

    def arrived(self, slot: Slot) -> None:
        """Something has come into a slot: run what can run."""
        ...

    def changed(self) -> None:
        """The instance is available again, or gone."""
        ...

    def fail_waiting(self, error: EngineError) -> None: ...

    def stop(self, error: EngineError) -> None: ...
