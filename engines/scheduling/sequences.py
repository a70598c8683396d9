"""Sequence batching: the requests of a sequence run one after another, on one instance, in a slot.

A new sequence takes a free slot, or waits in the backlog for one. It leaves its slot with its final request, after an
idle timeout, when one of its waiting requests is cancelled, or with its instance.

Source: Triton core `sequence_batch_scheduler.cc`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from engines.core.calls import InferenceCall, Sink
from engines.core.errors import EngineError, invalid, unavailable
from engines.core.messages import InferResponse, TensorData
from engines.scheduling.controls import Controls
from engines.scheduling.interfaces import STOPPING, Alarm, Clock, Instance
from engines.scheduling.rate_limiter import Enrol
from engines.scheduling.slot_batchers import DirectBatcher, OldestBatcher
from engines.scheduling.slots import Backlogs, SequenceId, Slot, SlotBatcher

# Triton's SEQUENCE_IDLE_DEFAULT_MICROSECONDS.
DEFAULT_IDLE_US = 1_000_000

# A model with this parameter has its states in a store (`runner.implicit_state`): its sequences may have begun
# elsewhere.
STATE_STORE = "STATE_STORE"

# Called when an instance may drop the implicit state of this key, except after a request with `sequence_end`, which the
# instance has seen itself.
DropState = Callable[[Instance, str], None]


class SequenceScheduler:
    def __init__(
        self,
        config: Any,
        instances: Sequence[Instance],
        clock: Clock,
        enrol: Enrol | None = None,
        drop_state: DropState | None = None,
    ) -> None:
        batching = config.sequence_batching
        self._clock = clock
        self._idle_ns = (batching.max_sequence_idle_microseconds or DEFAULT_IDLE_US) * 1000
        self._controls = Controls(config)
        self._drop_state = drop_state
        self._has_state = len(batching.state) > 0
        self._goes_on = self._has_state and STATE_STORE in config.parameters
        self._state_numbers = count(1)
        self._is_iterative = batching.iterative_sequence
        self._sequence_ids = count(1)  # of iterative requests that name no sequence
        # Running sequences that expect requests, the longest idle first.
        self._slots: OrderedDict[SequenceId, Slot] = OrderedDict()
        self._backlogs = Backlogs(clock)
        # A heap of free slots by number and instance: low numbers first, so that sequences spread over the instances.
        self._ready: list[tuple[int, int, Slot]] = []
        self._idle_timer = Alarm(clock, self._end_idle)
        self._is_stopped = False
        make = OldestBatcher if batching.HasField("oldest") else DirectBatcher
        self._batchers: list[SlotBatcher] = [
            make(config, instance, number, clock, self, enrol) for number, instance in enumerate(instances)
        ]
        for batcher in self._batchers:
            if batcher.instance.is_available:
                self._open(batcher)

    @property
    def num_pending(self) -> int:
        return self._backlogs.num_calls + sum(batcher.num_pending for batcher in self._batchers)

    def submit(self, call: InferenceCall) -> None:
        if self._is_stopped:
            call.fail(unavailable(STOPPING))
            return
        if call.is_cancelled:
            call.fail_cancelled()
            return
        if self._is_iterative and not call.request.sequence_id:
            call.request = replace(call.request, sequence_id=next(self._sequence_ids), sequence_start=True)
        try:
            call.controls = self._checked(call)
        except EngineError as error:
            call.fail(error)
            return
        call.queued_ns = self._clock.now_ns()
        request = call.request
        if self._is_iterative and request.sequence_start:
            call.reschedule = self._run_again
            call.through(lambda sink: partial(self._end_iterations, request.sequence_id, sink))
        if (slot := self._slots.get(request.sequence_id)) is not None:
            self._enqueue(slot, call)
        elif (backlog := self._backlogs.of(request.sequence_id)) is not None:
            self._backlogs.add(backlog, call)
        elif self._ready:
            slot = heappop(self._ready)[2]
            slot.sequence_id = request.sequence_id
            self._enqueue(slot, call)
        else:
            self._backlogs.open(call)

    def _run_again(self, call: InferenceCall) -> None:
        """The model wants a request of an iterative sequence to come again."""
        call.request = replace(call.request, sequence_start=False, sequence_end=False)
        if (slot := self._slots.get(call.request.sequence_id)) is not None:
            slot.is_in_flight = False
        self.submit(call)

    def _end_iterations(self, id: SequenceId, sink: Sink, response: InferResponse | None, is_final: bool) -> None:
        """An iterative sequence is over with the last response to the request that started it."""
        sink(response, is_final)
        if is_final and (slot := self._slots.get(id)) is not None:
            self._end(slot)

    def instance_changed(self, instance: Instance) -> None:
        for batcher in self._batchers:
            if batcher.instance is instance:
                batcher.changed()
                if instance.is_available and not batcher.is_open:
                    self._open(batcher)

    def stop(self) -> None:
        self._is_stopped = True
        self._idle_timer.cancel()
        self._slots.clear()
        self._backlogs.fail_all(unavailable(STOPPING))
        for batcher in self._batchers:
            batcher.fail_waiting(unavailable(STOPPING))
            batcher.close()

    # Called by batchers

    def prepare(self, slot: Slot, call: InferenceCall) -> None:
        """Prepare a call for its slot."""
        call.on_cancel = None
        if self._has_state:
            if call.request.sequence_start:
                self.drop_state(slot)
            if slot.state_key is None:
                slot.state_key = f"{slot.batcher.instance.name}/{next(self._state_numbers)}"
            call.state_key = slot.state_key

    def release(self, slot: Slot, *, was_ended: bool) -> None:
        """The sequence of a slot has ended: give the slot to the next one. `was_ended`: by its final request."""
        if was_ended:
            slot.state_key = None
        else:
            self.drop_state(slot)
        slot.sequence_id = 0
        if not slot.batcher.is_open:
            return
        backlog = self._backlogs.pop()
        if backlog is None:
            heappush(self._ready, (slot.index, slot.batcher.number, slot))
            return
        slot.sequence_id = backlog.sequence_id
        for call in backlog.calls:
            slot.queue.append(call)
            call.on_cancel = partial(self._cancelled, slot, call)
        if not backlog.is_complete:
            self._touch(slot)

    def drop_state(self, slot: Slot) -> None:
        if slot.state_key is not None and self._drop_state is not None and slot.batcher.is_open:
            self._drop_state(slot.batcher.instance, slot.state_key)
        slot.state_key = None

    def lost(self, batcher: SlotBatcher) -> None:
        """An instance has become unavailable, with the states of its sequences."""
        if not batcher.is_open:
            return
        batcher.is_open = False
        for slot in batcher.slots:
            self._forget(slot)
            slot.state_key = None
            slot.sequence_id = 0
        self._ready = sorted(ready for ready in self._ready if ready[2].batcher is not batcher)
        name = batcher.instance.name
        batcher.fail_waiting(unavailable(f"model instance '{name}' has gone, and its sequences with it"))

    def _checked(self, call: InferenceCall) -> tuple[TensorData, ...]:
        """The control inputs of a call that may go on. Raises: EngineError."""
        request = call.request
        if call.batch_size > 1:
            raise invalid(
                f"inference request to model '{request.model}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        if not request.sequence_id:
            raise invalid(
                f"inference request to model '{request.model}' must specify a non-zero or non-empty correlation ID"
            )
        is_known = request.sequence_id in self._slots or self._backlogs.of(request.sequence_id) is not None
        if not (request.sequence_start or self._goes_on or is_known):
            raise invalid(
                f"inference request for sequence {request.sequence_id} to model '{request.model}' must specify the "
                "START flag on the first request of the sequence"
            )
        return self._controls.of(request)

    def _open(self, batcher: SlotBatcher) -> None:
        batcher.is_open = True
        for slot in batcher.slots:
            self.release(slot, was_ended=True)
        for slot in batcher.slots:
            batcher.arrived(slot)

    def _enqueue(self, slot: Slot, call: InferenceCall) -> None:
        if call.request.sequence_end:
            self._forget(slot)
        else:
            self._touch(slot)
        call.on_cancel = partial(self._cancelled, slot, call)
        slot.queue.append(call)
        slot.batcher.arrived(slot)

    def _touch(self, slot: Slot) -> None:
        """A sequence that expects more requests has had one, or has got its slot."""
        slot.touched_ns = self._clock.now_ns()
        self._slots[slot.sequence_id] = slot
        self._slots.move_to_end(slot.sequence_id)
        self._idle_timer.set(slot.touched_ns + self._idle_ns)

    def _forget(self, slot: Slot) -> None:
        """A sequence expects no more requests."""
        if self._slots.get(slot.sequence_id) is slot:
            del self._slots[slot.sequence_id]

    def _end_idle(self) -> None:
        now = self._clock.now_ns()
        idle: list[Slot] = []
        for slot in self._slots.values():
            if now - slot.touched_ns < self._idle_ns:
                self._idle_timer.set(slot.touched_ns + self._idle_ns)
                break
            idle.append(slot)
        for slot in idle:
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        """Free a slot once the requests that wait there have run."""
        self._forget(slot)
        slot.queue.append(None)
        slot.batcher.arrived(slot)

    def _cancelled(self, slot: Slot, call: InferenceCall) -> None:
        """A sequence ends at a missing request; the later ones fail with it."""
        if call not in slot.queue:
            return
        waiting_calls, cut = deque[InferenceCall | None](), list[InferenceCall]()
        for waiting in slot.queue:
            if cut or waiting is call:
                cut.extend((waiting,) if waiting is not None else ())
            else:
                waiting_calls.append(waiting)
        slot.queue = waiting_calls
        self._end(slot)
        for waiting in cut:
            waiting.fail_cancelled()
