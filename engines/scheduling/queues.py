"""Queues with priorities, timeouts and a limit, as the dynamic batcher's configuration describes them.

Source: Triton core `scheduler_utils.cc` (PriorityQueue), model_config.proto (ModelQueuePolicy).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

from engines.core.calls import InferenceCall, Sink
from engines.core.messages import InferResponse, Raw, SharedMemory

# Of each input that matters, by name: its shape without the batch axis (None for any), and its data if that must be
# equal too. Calls with equal values may share a batch.
Shapes = dict[str, tuple[tuple[int, ...] | None, Raw | SharedMemory | None]]


class SameShapes:
    """Calls of a batch have equal shapes of inputs with variable sizes (unless ragged), equal contents of shape
    tensors, and the same optional inputs."""

    __slots__ = ("_compares_data", "_first_axis", "_has_optional", "is_needed")

    def __init__(self, config: Any) -> None:
        self._compares_data = {
            i.name: i.is_shape_tensor
            for i in config.input
            if i.is_shape_tensor or (-1 in i.dims and not i.allow_ragged_batch)
        }
        self._has_optional = any(i.optional for i in config.input)
        self._first_axis = 1 if config.max_batch_size > 0 else 0
        self.is_needed = bool(self._compares_data) or self._has_optional

    def of(self, call: InferenceCall) -> Shapes:
        shapes: Shapes = {}
        for tensor in call.request.inputs:
            compares_data = self._compares_data.get(tensor.name)
            if compares_data is not None:
                shapes[tensor.name] = (tensor.shape[self._first_axis :], tensor.data if compares_data else None)
            elif self._has_optional:
                shapes[tensor.name] = (None, None)
        return shapes


class Order:
    """Calls in order: the responses of the first one pass, those of the others wait for their turn."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: deque[_OrderedCall] = deque()

    def join(self, call: InferenceCall) -> None:
        call.through(self._enqueue)

    def _enqueue(self, sink: Sink) -> Sink:
        ordered = _OrderedCall(sink)
        self._line.append(ordered)
        return partial(self._take, ordered)

    def _take(self, ordered: _OrderedCall, response: InferResponse | None, is_final: bool) -> None:
        ordered.responses.append((response, is_final))
        if ordered.is_flushing:
            return  # a sink submits again: the loop below continues
        while self._line and not self._line[0].is_flushing and self._line[0].responses:
            if not self._flush(self._line[0]):
                break

    def _flush(self, first: _OrderedCall) -> bool:
        """Pass on the responses of the first call; whether it has ended."""
        first.is_flushing = True
        while first.responses:
            response, is_final = first.responses.popleft()
            if is_final:
                self._line.popleft()
            first.sink(response, is_final)
            if is_final:
                return True
        first.is_flushing = False
        return False


class _OrderedCall:
    """A call in the line: its sink, and the responses that wait."""

    __slots__ = ("is_flushing", "responses", "sink")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.responses: deque[tuple[InferResponse | None, bool]] = deque()
        self.is_flushing = False


REJECT = 0  # ModelQueuePolicy.TimeoutAction; the other is DELAY


class QueuedCall:
    """A call in a queue. `deadline_ns` is 0 without a timeout."""

    __slots__ = ("call", "deadline_ns", "queue", "shapes", "since_ns")

    def __init__(self, call: InferenceCall, since_ns: int) -> None:
        self.call = call
        self.since_ns = since_ns
        self.deadline_ns = 0
        self.shapes: Shapes | None = None  # once they have been looked at
        self.queue: PolicyQueue | None = None


class PolicyQueue:
    """The calls of one priority: those in time, then the late ones that are only delayed."""

    __slots__ = ("_default_timeout_ns", "_is_rejecting", "_late", "_max_size", "_may_override", "_on_time")

    def __init__(self, policy: Any) -> None:
        self._is_rejecting = policy.timeout_action == REJECT
        self._default_timeout_ns = policy.default_timeout_microseconds * 1000
        self._may_override = policy.allow_timeout_override
        self._max_size = policy.max_queue_size
        self._on_time: OrderedDict[QueuedCall, None] = OrderedDict()
        self._late: OrderedDict[QueuedCall, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._on_time) + len(self._late)

    def __iter__(self) -> Iterator[QueuedCall]:
        yield from self._on_time
        yield from self._late

    @property
    def is_full(self) -> bool:
        return bool(self._max_size) and len(self) >= self._max_size

    def add(self, waiting: QueuedCall) -> None:
        timeout_ns = self._default_timeout_ns
        # A request may shorten the default timeout, but neither lengthen it nor set one without a default.
        if self._may_override and 0 < waiting.call.request.timeout_us * 1000 < timeout_ns:
            timeout_ns = waiting.call.request.timeout_us * 1000
        waiting.deadline_ns = waiting.since_ns + timeout_ns if timeout_ns else 0
        waiting.queue = self
        self._on_time[waiting] = None

    def remove(self, waiting: QueuedCall) -> None:
        waiting.queue = None
        if waiting in self._on_time:
            del self._on_time[waiting]
        else:
            del self._late[waiting]

    def expire(self, now_ns: int) -> list[QueuedCall]:
        """Move the late ones behind the others, or remove and return them for rejection."""
        if not self._default_timeout_ns:
            return []
        late = []
        for waiting in self._on_time:
            if now_ns > waiting.deadline_ns:
                late.append(waiting)
            elif not self._may_override:
                break  # equal timeouts: the others arrived later
        for waiting in late:
            del self._on_time[waiting]
        if self._is_rejecting:
            for waiting in late:
                waiting.queue = None
            return late
        self._late.update(dict.fromkeys(late))
        return []

    def next_rejection_ns(self) -> int:
        """The time of the next rejection, 0 for never."""
        if not (self._is_rejecting and self._default_timeout_ns and self._on_time):
            return 0
        if not self._may_override:
            return next(iter(self._on_time)).deadline_ns
        return min(waiting.deadline_ns for waiting in self._on_time)


class PriorityQueue:
    """The queues of all priorities, 1 before 2; without priorities there is the one queue 0."""

    __slots__ = ("_default_level", "_default_policy", "_has_timeouts", "_levels", "_policies", "_queues", "_size")

    def __init__(self, batching: Any) -> None:
        """`batching` is a ModelDynamicBatching message."""
        self._levels = batching.priority_levels
        self._default_level = batching.default_priority_level if self._levels else 0
        self._default_policy = batching.default_queue_policy
        self._policies = dict(batching.priority_queue_policy) if self._levels else {}
        self._queues: dict[int, PolicyQueue] = {}
        self._size = 0
        policies = [self._default_policy, *self._policies.values()]
        self._has_timeouts = any(policy.default_timeout_microseconds for policy in policies)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[QueuedCall]:
        """In the order of execution."""
        for queue in self._queues.values():
            yield from queue

    def add(self, waiting: QueuedCall) -> bool:
        """False if its queue is full."""
        level = waiting.call.request.priority
        if not 0 < level <= self._levels:
            level = self._default_level
        queue = self._queues.get(level)
        if queue is None:
            queue = PolicyQueue(self._policies.get(level, self._default_policy))
            self._queues = dict(sorted({**self._queues, level: queue}.items()))
        if queue.is_full:
            return False
        queue.add(waiting)
        self._size += 1
        return True

    def remove(self, waiting: QueuedCall) -> None:
        assert waiting.queue is not None
        waiting.queue.remove(waiting)
        self._size -= 1

    def expire(self, now_ns: int) -> list[QueuedCall]:
        """Apply the timeouts; returns the calls that are out of the queues now and to be rejected."""
        if not self._has_timeouts:
            return []
        rejected = [waiting for queue in self._queues.values() for waiting in queue.expire(now_ns)]
        self._size -= len(rejected)
        return rejected

    def next_rejection_ns(self) -> int:
        if not self._has_timeouts:
            return 0
        return min((when for queue in self._queues.values() if (when := queue.next_rejection_ns())), default=0)

    def clear(self) -> list[QueuedCall]:
        everything = list(self)
        for waiting in everything:
            self.remove(waiting)
        return everything
