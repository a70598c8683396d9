"""Oldest-first sequence batching: each sequence sends its next request to a dynamic batcher when the one before has
been answered, so that a batch never has two of a sequence and a place in it means nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

from engines.core.calls import InferenceCall, Sink
from engines.core.errors import EngineError
from engines.core.messages import InferResponse
from engines.scheduling.batching import DynamicBatcher
from engines.scheduling.interfaces import Clock, Instance
from engines.scheduling.rate_limiter import Enrol
from engines.scheduling.slots import Sequences, Slot


class OldestBatcher:
    def __init__(
        self, config: Any, instance: Instance, number: int, clock: Clock, sequences: Sequences, enrol: Enrol | None
    ) -> None:
        """Raises: EngineError, as `Seats` does."""
        oldest = config.sequence_batching.oldest
        self.instance = instance
        self.number = number
        self.is_open = False
        num_slots = oldest.max_candidate_sequences or max(config.max_batch_size, 1)
        self.slots = [Slot(self, index) for index in range(num_slots)]
        self._sequences = sequences
        self._batcher = DynamicBatcher(config, oldest, (instance,), clock, enrol, partial(sequences.lost, self))

    def __repr__(self) -> str:
        return f"<OldestBatcher {self.instance.name}: {self.num_pending} waiting, {self._batcher}>"

    @property
    def num_pending(self) -> int:
        return self._batcher.num_pending + sum(call is not None for slot in self.slots for call in slot.queue)

    def changed(self) -> None:
        self._batcher.instance_changed(self.instance)

    def stop(self, error: EngineError) -> None:
        self.fail_waiting(error)
        self._batcher.stop()

    def fail_waiting(self, error: EngineError) -> None:
        waiting = [call for slot in self.slots for call in slot.queue if call is not None]
        for slot in self.slots:
            slot.queue.clear()
        self._batcher.fail_waiting(error)
        for call in waiting:
            call.fail(error)

    def arrived(self, slot: Slot) -> None:
        if slot.is_advancing:
            return  # answered at once: the loop below goes on
        slot.is_advancing = True
        try:
            while slot.queue and not slot.is_in_flight:
                call = slot.queue.popleft()
                if call is None:
                    self._sequences.release(slot, was_ended=False)
                else:
                    self._send(slot, call)
        finally:
            slot.is_advancing = False

    def _send(self, slot: Slot, call: InferenceCall) -> None:
        self._sequences.prepare(slot, call)
        slot.is_in_flight = True
        if call.request.sequence_end:
            self._sequences.release(slot, was_ended=True)
        call.through(partial(_Step, self, slot))
        self._batcher.submit(call)

    def answered(self, slot: Slot) -> None:
        """The request of a slot that was in flight is over."""
        slot.is_in_flight = False
        self.arrived(slot)


class _Step:
    """The sink of a request in flight."""

    __slots__ = ("_batcher", "_sink", "_slot")

    def __init__(self, batcher: OldestBatcher, slot: Slot, sink: Sink) -> None:
        self._batcher = batcher
        self._slot = slot
        self._sink = sink

    def __call__(self, response: InferResponse | None, is_final: bool) -> None:
        self._sink(response, is_final)
        if is_final:
            self._batcher.answered(self._slot)
