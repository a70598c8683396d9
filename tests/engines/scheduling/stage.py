"""A clock that is moved by hand, instances that the test controls, and calls that record their outcome.

The instances follow `engines.scheduling.interfaces.Instance`, and assert that schedulers do too.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from google.protobuf import text_format

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, internal
from engines.core.messages import InferRequest, InferResponse, TensorData
from gateway.protocol.protobuf import message

US = 1_000
MS = 1_000_000
S = 1_000_000_000


def config(text: str) -> Any:
    """A model's configuration, from the text of a config.pbtxt."""
    return text_format.Parse(text, message("inference.ModelConfig")())


class HandClock:
    """Starts at one second, stands still until it is moved."""

    def __init__(self) -> None:
        self.now = S
        self._timers: list[tuple[int, int, HandTimer]] = []
        self._numbers = count()

    def now_ns(self) -> int:
        return self.now

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> HandTimer:
        timer = HandTimer(callback)
        heapq.heappush(self._timers, (when_ns, next(self._numbers), timer))
        return timer

    def move(self, ns: int) -> None:
        """Advance the clock, and fire each due timer at its time."""
        end = self.now + ns
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            timer.fire()
        self.now = end

    @property
    def num_timers(self) -> int:
        return sum(not timer.is_cancelled for _, _, timer in self._timers)


class HandTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        if not self.is_cancelled:
            self._callback()


class FakeInstance:
    """Runs a batch until `answer` or `crash`; an instant one responds at once. `batches` are all batches that it
    got."""

    def __init__(self, name: str = "m_0_0", *, is_instant: bool = False, device_id: int = 0) -> None:
        self.name = name
        self.device_id = device_id
        self.is_instant = is_instant
        self.is_up = True
        self.batches: list[list[InferenceCall]] = []
        self._running: tuple[list[InferenceCall], Callable[[], None]] | None = None

    @property
    def is_available(self) -> bool:
        return self.is_up and self._running is None

    @property
    def running(self) -> list[InferenceCall]:
        return self._running[0] if self._running else []

    @property
    def ids(self) -> list[list[str]]:
        """The batches, by the ids of their requests."""
        return [[call.request.id for call in batch] for batch in self.batches]

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        assert self.is_available, f"{self.name} is given a batch while it is not available"
        assert calls and not any(call.is_over for call in calls)
        assert all(call.started_ns for call in calls)
        self.batches.append(list(calls))
        self._running = list(calls), done
        if self.is_instant:
            self.answer()

    def answer(self) -> None:
        """Respond to each call of the batch with its id."""
        calls, done = self._end()
        for call in calls:
            call.respond(answer_of(call), is_final=True)
        done()

    def reschedule(self) -> None:
        """Have each call of the batch come again, as a python model may; idle rows end."""
        calls, done = self._end()
        done()
        for call in calls:
            if call.reschedule is not None:
                call.reschedule(call)
            else:
                call.finish()

    def crash(self) -> None:
        calls, done = self._end()
        self.is_up = False
        for call in calls:
            call.fail(internal("crashed"))
        done()

    def _end(self) -> tuple[list[InferenceCall], Callable[[], None]]:
        assert self._running is not None, f"{self.name} has nothing to answer"
        running, self._running = self._running, None
        return running


def answer_of(call: InferenceCall) -> InferResponse:
    id = call.request.id.encode()
    return InferResponse((TensorData("OUT", "UINT8", (len(id),), id),))


class RecordedReplies:
    """The sink of a call, which records the responses and the end."""

    def __init__(self, log: list[str] | None = None) -> None:
        self.responses: list[InferResponse] = []
        self.is_over = False
        self.id = ""
        self._log = log

    def __call__(self, response: InferResponse | None, is_final: bool) -> None:
        assert not self.is_over, f"{self.id} ends twice"
        if response is not None:
            self.responses.append(response)
        if is_final:
            self.is_over = True
            if self._log is not None:
                self._log.append(self.id)

    @property
    def error(self) -> EngineError | None:
        return self.responses[-1].error if self.responses else None

    @property
    def outcomes(self) -> str:
        """ "waits", "answered", or "CODE: the error"."""
        if not self.is_over:
            return "waits"
        return f"{self.error.code.name}: {self.error.message}" if self.error else "answered"


class SchedulerClient:
    """A client that submits calls and records their replies."""

    def __init__(self, submit: Callable[[InferenceCall], None], clock: HandClock) -> None:
        self._submit = submit
        self._clock = clock
        self.calls: dict[str, InferenceCall] = {}
        self.replies: dict[str, RecordedReplies] = {}
        self.order: list[str] = []  # ids in the order in which the calls ended

    def submit(self, id: str, *, rows: int = 1, inputs: Sequence[TensorData] = (), **more: Any) -> InferenceCall:
        replies = RecordedReplies(self.order)
        replies.id = id
        call = InferenceCall(InferRequest("m", id=id, inputs=tuple(inputs), **more), replies, self._clock.now_ns())
        call.batch_size = rows
        self.calls[id] = call
        self.replies[id] = replies
        self._submit(call)
        return call

    def outcomes(self, *ids: str) -> list[str]:
        return [self.replies[id].outcomes for id in ids or self.replies]


CANCELLED = "CANCELLED: inference request is cancelled"
