"""The two strategies of sequence batching.

Direct: each slot has its row of the batch, so that a model may store a sequence's state by row. The row of an idle slot
is filled with a request that is not ready.

Oldest first: each slot sends one request at a time to a dynamic batcher.
"""

from __future__ import annotations

import struct
from functools import partial
from math import prod
from typing import Any

from engines.core.calls import InferenceCall, Sink
from engines.core.errors import EngineError
from engines.core.messages import InferRequest, InferResponse, TensorData
from engines.scheduling.batching import DynamicBatcher
from engines.scheduling.controls import Controls
from engines.scheduling.instance_pool import InstancePool
from engines.scheduling.interfaces import Alarm, Clock, Instance
from engines.scheduling.queues import SameShapes
from engines.scheduling.rate_limiter import Enrol
from engines.scheduling.slots import Sequences, Slot, SlotBatcher


class DirectBatcher(SlotBatcher):
    def __init__(
        self, config: Any, instance: Instance, number: int, clock: Clock, sequences: Sequences, enrol: Enrol | None
    ) -> None:
        direct = config.sequence_batching.direct
        super().__init__(instance, number, max(config.max_batch_size, 1))
        self._clock = clock
        self._sequences = sequences
        self._same = SameShapes(config)
        self._idle_controls = Controls(config).idle()
        self._has_state = len(config.sequence_batching.state) > 0
        self._delay_ns = direct.max_queue_delay_microseconds * 1000
        self._minimum_utilization = direct.minimum_slot_utilization
        self._timer = Alarm(clock, self._dispatch)
        self._is_dispatching = False
        self._pool = InstancePool((instance,), clock, self._dispatch, partial(sequences.lost, self), enrol)

    def changed(self) -> None:
        self._pool.changed(self.instance)

    def close(self) -> None:
        self._pool.close()

    def fail_waiting(self, error: EngineError) -> None:
        self._timer.cancel()
        for call in self.take_waiting():
            call.fail(error)

    def arrived(self, slot: Slot) -> None:
        self._dispatch()

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while True:
                self._release_ended()
                if not self._pool.free:
                    return
                ready = [slot for slot in self.slots if slot.queue]
                if not ready or self._waits_for_more(ready) or (held := self._pool.take()) is None:
                    return
                self._pool.run(held, self._batch(ready))
        finally:
            self._is_dispatching = False

    def _release_ended(self) -> None:
        """Release slots whose sequence has ended without a final request."""
        if not self._pool.free:
            return  # its last request may be running
        for slot in self.slots:
            while slot.queue and slot.queue[0] is None:
                slot.queue.popleft()
                self._sequences.release(slot, was_ended=False)

    def _waits_for_more(self, ready: list[Slot]) -> bool:
        """Whether the batch waits for more slots to have requests."""
        self._timer.cancel()
        if not self._delay_ns or not self._minimum_utilization:
            return False
        if len(ready) / len(self.slots) >= self._minimum_utilization:
            return False
        latest = min(_front(slot).queued_ns for slot in ready) + self._delay_ns
        if self._clock.now_ns() > latest:
            return False
        self._timer.set(latest + 1)
        return True

    def _batch(self, ready: list[Slot]) -> list[InferenceCall]:
        """One call for each slot up to the last one with a request."""
        model = _front(ready[0])
        shapes = self._same.of(model) if self._same.is_needed else None
        batch: list[InferenceCall] = []
        for slot in self.slots[: ready[-1].index + 1]:
            if not slot.queue or (shapes is not None and self._same.of(_front(slot)) != shapes):
                batch.append(self._idle_call(model))
                continue
            call = _front(slot)
            slot.queue.popleft()
            self._sequences.prepare(slot, call)
            batch.append(call)
            if call.request.sequence_end:
                self._sequences.release(slot, was_ended=True)
        return batch

    def _idle_call(self, model: InferenceCall) -> InferenceCall:
        """A call that fills a row: inputs of zeros like another's, and no recipient."""
        request = model.request
        inputs = tuple(_zeros(tensor) for tensor in request.inputs)
        call = InferenceCall(InferRequest(request.model, request.version, inputs=inputs), _discard)
        call.controls = self._idle_controls
        call.state_key = "" if self._has_state else None  # an unused state
        return call


def _front(slot: Slot) -> InferenceCall:
    call = slot.queue[0]
    assert call is not None, "ended slots are released before batches are made"
    return call


def _zeros(tensor: TensorData) -> TensorData:
    if tensor.datatype == "BYTES":
        data = struct.pack("<I", 0) * prod(tensor.shape)  # empty strings
    elif isinstance(tensor.data, bytes | memoryview):
        data = bytes(memoryview(tensor.data).nbytes)
    else:
        data = bytes(tensor.data.num_bytes)
    return TensorData(tensor.name, tensor.datatype, tensor.shape, data)


def _discard(response: InferResponse | None, is_final: bool) -> None:
    pass


class OldestBatcher(SlotBatcher):
    def __init__(
        self, config: Any, instance: Instance, number: int, clock: Clock, sequences: Sequences, enrol: Enrol | None
    ) -> None:
        oldest = config.sequence_batching.oldest
        super().__init__(instance, number, oldest.max_candidate_sequences or max(config.max_batch_size, 1))
        self._sequences = sequences
        self._batcher = DynamicBatcher(config, oldest, (instance,), clock, enrol, partial(sequences.lost, self))

    @property
    def num_pending(self) -> int:
        return self._batcher.num_pending + super().num_pending

    def changed(self) -> None:
        self._batcher.instance_changed(self.instance)

    def close(self) -> None:
        self._batcher.stop()

    def fail_waiting(self, error: EngineError) -> None:
        waiting = self.take_waiting()
        self._batcher.fail_waiting(error)
        for call in waiting:
            call.fail(error)

    def arrived(self, slot: Slot) -> None:
        if slot.is_advancing:
            return  # the call ended at once: the loop below continues
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
        if not call.started_ns:  # else it comes again
            call.through(lambda sink: partial(self._pass_on, slot, sink))
        self._batcher.submit(call)

    def _pass_on(self, slot: Slot, sink: Sink, response: InferResponse | None, is_final: bool) -> None:
        """Pass on a response of the request in flight."""
        sink(response, is_final)
        if is_final:
            slot.is_in_flight = False
            self.arrived(slot)
