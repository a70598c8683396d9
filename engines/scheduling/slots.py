"""The places of sequences: a slot of an instance's batcher, or the backlog.

Sequences in the backlog wait for a slot in order of arrival. A sequence fails as a whole when a timeout of its requests
expires, or when one of them is cancelled.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from typing import Protocol

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, unavailable
from engines.scheduling.interfaces import SEQUENCE_TIMEOUT_EXPIRED, Alarm, Clock, Instance

SequenceId = int | str


class Slot:
    """`queue` has the requests that wait for earlier ones; None marks the end of a sequence without a final request."""

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


class Sequences(Protocol):
    """The scheduler, as batchers see it."""

    def prepare(self, slot: Slot, call: InferenceCall) -> None: ...

    def release(self, slot: Slot, *, was_ended: bool) -> None: ...

    def lost(self, batcher: SlotBatcher) -> None: ...


class SlotBatcher:
    """Batches the sequences in the slots of one instance. `is_open`: sequences may start here."""

    def __init__(self, instance: Instance, number: int, num_slots: int) -> None:
        self.instance = instance
        self.number = number
        self.slots = [Slot(self, index) for index in range(num_slots)]
        self.is_open = False

    @property
    def num_pending(self) -> int:
        return sum(call is not None for slot in self.slots for call in slot.queue)

    def take_waiting(self) -> list[InferenceCall]:
        """Empty the slots' queues."""
        waiting = [call for slot in self.slots for call in slot.queue if call is not None]
        for slot in self.slots:
            slot.queue.clear()
        return waiting

    def arrived(self, slot: Slot) -> None:
        """A request has arrived in a slot: run what can run."""
        raise NotImplementedError

    def changed(self) -> None:
        """The instance is available again, or gone."""
        raise NotImplementedError

    def fail_waiting(self, error: EngineError) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """The scheduler stops; nothing waits any more."""
        raise NotImplementedError


class Backlog:
    """The requests of a sequence so far. `expires_ns` is 0 without a timeout."""

    __slots__ = ("calls", "expires_ns", "is_complete", "sequence_id")

    def __init__(self, sequence_id: SequenceId) -> None:
        self.sequence_id = sequence_id
        self.calls: list[InferenceCall] = []
        self.expires_ns = 0
        self.is_complete = False  # its last request is here


class Backlogs:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: OrderedDict[Backlog, None] = OrderedDict()
        self._incomplete: dict[SequenceId, Backlog] = {}
        self._timer = Alarm(clock, self._expire)

    @property
    def num_calls(self) -> int:
        return sum(len(backlog.calls) for backlog in self._waiting)

    def of(self, sequence_id: SequenceId) -> Backlog | None:
        """The backlog of a sequence that expects more requests."""
        return self._incomplete.get(sequence_id)

    def open(self, call: InferenceCall) -> None:
        backlog = Backlog(call.request.sequence_id)
        self._waiting[backlog] = None
        self._incomplete[backlog.sequence_id] = backlog
        self.add(backlog, call)

    def add(self, backlog: Backlog, call: InferenceCall) -> None:
        backlog.calls.append(call)
        call.on_cancel = partial(self._cancelled, backlog)
        if call.request.timeout_us:
            expires = self._clock.now_ns() + call.request.timeout_us * 1000
            backlog.expires_ns = min(backlog.expires_ns or expires, expires)
            self._timer.set(backlog.expires_ns)
        if call.request.sequence_end:
            backlog.is_complete = True
            self._forget(backlog)

    def pop(self) -> Backlog | None:
        """The next sequence to have a slot."""
        if not self._waiting:
            return None
        backlog, _ = self._waiting.popitem(last=False)
        self._forget(backlog)
        return backlog

    def fail_all(self, error: EngineError) -> None:
        self._timer.cancel()
        while (backlog := self.pop()) is not None:
            for call in backlog.calls:
                call.fail(error)

    def _forget(self, backlog: Backlog) -> None:
        if self._incomplete.get(backlog.sequence_id) is backlog:
            del self._incomplete[backlog.sequence_id]

    def _cancelled(self, backlog: Backlog) -> None:
        if backlog in self._waiting:
            del self._waiting[backlog]
            self._forget(backlog)
            for call in backlog.calls:
                call.fail_cancelled()

    def _expire(self) -> None:
        now = self._clock.now_ns()
        expired = [backlog for backlog in self._waiting if 0 < backlog.expires_ns <= now]
        for backlog in expired:
            del self._waiting[backlog]
            self._forget(backlog)
        if later := [backlog.expires_ns for backlog in self._waiting if backlog.expires_ns]:
            self._timer.set(min(later))
        for backlog in expired:
            for call in backlog.calls:
                call.fail(unavailable(SEQUENCE_TIMEOUT_EXPIRED))
