"""Dynamic batching: calls that wait together run together.

A batch of a preferred size runs at once; a smaller one when its oldest call has waited for the allowed delay, or when
the batch cannot grow. Batches are formed when an instance is free, so that calls that arrive until then join.

Source: Triton core `dynamic_batch_scheduler.cc` (GetDynamicBatch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, unavailable
from engines.scheduling.instance_pool import InstancePool
from engines.scheduling.interfaces import TIMEOUT_EXPIRED, Alarm, Clock, Instance, stopping, tag
from engines.scheduling.queues import Order, PriorityQueue, QueuedCall, SameShapes
from engines.scheduling.rate_limiter import Enrol

# Minimum period of the search for expired calls if requests have timeouts of their own.
REJECTION_PERIOD_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """When a batch is large enough; all in rows (`InferenceCall.batch_size`)."""

    preferred: frozenset[int]
    max_preferred: int
    max: int
    delay_ns: int

    @classmethod
    def of(cls, config: Any, batching: Any) -> Sizes:
        """`batching` is the part of the configuration that describes the batches: ModelDynamicBatching, or
        ModelSequenceBatching.StrategyOldest."""
        preferred = frozenset(batching.preferred_batch_size)
        if not preferred and config.max_batch_size > 0:
            preferred = frozenset((config.max_batch_size,))
        return cls(
            preferred,
            max(preferred, default=0),
            max(config.max_batch_size, 1),
            batching.max_queue_delay_microseconds * 1000,
        )


class DynamicBatcher:
    def __init__(
        self,
        config: Any,
        batching: Any,
        instances: Sequence[Instance],
        clock: Clock,
        enrol: Enrol | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> None:
        self._clock = clock
        self._sizes = Sizes.of(config, batching)
        self._same = SameShapes(config)
        self._queue = PriorityQueue(config.dynamic_batching)  # with defaults for batches of sequences
        self._order = Order() if batching.preserve_ordering else None
        self._queued_rows = 0
        self._batch: list[QueuedCall] = []  # waits to grow
        self._wanted_rows = 0  # with fewer rows than these in the queue, it has not grown enough
        self._delay = Alarm(clock, self._dispatch)
        self._rejection = Alarm(clock, self._deadline_over)
        self._is_stopped = False
        self._is_dispatching = False
        self._pool = InstancePool(instances, clock, self._dispatch, on_lost, enrol)

    @property
    def num_pending(self) -> int:
        return len(self._queue)

    def submit(self, call: InferenceCall) -> None:
        if self._is_stopped:
            call.fail(stopping(call))
            return
        if call.is_cancelled:
            call.fail_cancelled()
            return
        if not self._sizes.delay_ns and not self._queue and (held := self._pool.take()) is not None:
            if self._order is not None and not call.started_ns:  # one that is rescheduled keeps its place
                self._order.join(call)
            self._pool.run(held, (call,))
            return
        waiting = QueuedCall(call, self._clock.now_ns())
        if not self._queue.add(waiting):
            call.fail(unavailable(tag(call) + "Exceeds maximum queue size"))
            return
        call.on_cancel = partial(self._cancelled, waiting)
        self._queued_rows += call.batch_size
        if waiting.deadline_ns:
            self._rejection.set(waiting.deadline_ns + 1)
        if self._pool.free and not self._changes_nothing(waiting):
            self._dispatch()

    def instance_changed(self, instance: Instance) -> None:
        self._pool.changed(instance)

    def stop(self) -> None:
        self._is_stopped = True
        for waiting in self._clear():
            waiting.call.fail(stopping(waiting.call))
        self._pool.close()

    def fail_waiting(self, error: EngineError) -> None:
        """Fail all waiting calls, and go on."""
        for waiting in self._clear():
            waiting.call.fail(error)

    def _clear(self) -> list[QueuedCall]:
        self._stop_waiting_for_more()
        self._rejection.cancel()
        self._queued_rows = 0
        return self._queue.clear()

    def _cancelled(self, waiting: QueuedCall) -> None:
        if waiting.queue is not None:
            self._take_out(waiting)
            self._stop_waiting_for_more()
            waiting.call.fail_cancelled()
            if self._queue and self._pool.free:
                self._dispatch()

    def _take_out(self, waiting: QueuedCall) -> None:
        self._queue.remove(waiting)
        self._queued_rows -= waiting.call.batch_size
        waiting.call.on_cancel = None

    def _changes_nothing(self, waiting: QueuedCall) -> bool:
        """Whether a batch that waits to grow still waits after this call, which is at the end of the queue: it fits the
        batch, and the rows are fewer than the next preferred size."""
        if not self._batch or self._queued_rows >= self._wanted_rows or waiting.call.request.priority:
            return False
        return not self._same.is_needed or self._shapes(waiting) == self._shapes(self._batch[0])

    def _shapes(self, waiting: QueuedCall) -> object:
        if waiting.shapes is None:
            waiting.shapes = self._same.of(waiting.call)
        return waiting.shapes

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            while self._queue and self._pool.free:
                if self._batch:
                    self._stop_waiting_for_more()
                now = self._clock.now_ns()
                self._reject_late(now)
                batch = self._form(now)
                if not batch or (held := self._pool.take()) is None:
                    return
                for waiting in batch:
                    self._take_out(waiting)
                    if self._order is not None and not waiting.call.started_ns:
                        self._order.join(waiting.call)
                self._pool.run(held, [waiting.call for waiting in batch])
        finally:
            self._is_dispatching = False

    def _form(self, now: int) -> list[QueuedCall]:
        """The batch to run now, from the head of the queue. Empty if waiting is better: then a timer is set."""
        sizes = self._sizes
        batch: list[QueuedCall] = []
        rows = 0
        best = 0  # number of calls that make the largest preferred size
        oldest = now
        cannot_grow = False
        for waiting in self._queue:
            more = waiting.call.batch_size
            if batch:
                if not best and rows + more > sizes.max_preferred:
                    best = len(batch)
                if rows + more > sizes.max or (
                    self._same.is_needed and self._shapes(waiting) != self._shapes(batch[0])
                ):
                    cannot_grow = True
                    break
            batch.append(waiting)
            rows += more
            if waiting.since_ns < oldest:
                oldest = waiting.since_ns
            if rows in sizes.preferred:
                best = len(batch)
        is_late = sizes.delay_ns > 0 and now - oldest >= sizes.delay_ns
        if best and not is_late:
            return batch[:best]
        if cannot_grow or rows >= sizes.max_preferred or is_late or not sizes.delay_ns:
            return batch
        if batch:
            self._batch = batch
            self._wanted_rows = min((size for size in sizes.preferred if size > rows), default=0)
            self._delay.set(oldest + sizes.delay_ns)
        return []

    def _stop_waiting_for_more(self) -> None:
        self._batch = []
        self._delay.cancel()

    def _deadline_over(self) -> None:
        now = self._clock.now_ns()
        self._stop_waiting_for_more()
        self._reject_late(now)
        if deadline_ns := self._queue.next_rejection_ns():
            self._rejection.set(max(deadline_ns + 1, now + REJECTION_PERIOD_NS))
        self._dispatch()

    def _reject_late(self, now: int) -> None:
        for waiting in self._queue.expire(now):
            self._queued_rows -= waiting.call.batch_size
            waiting.call.on_cancel = None
            waiting.call.fail(unavailable(TIMEOUT_EXPIRED))
