"""The interfaces around a scheduler, and the errors of Triton's schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engines.core.calls import InferenceCall
from engines.core.errors import EngineError, unavailable


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time, and a way to be called later: the event loop's, or a hand that a test moves."""

    def now_ns(self) -> int: ...

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> Timer: ...


class Alarm:
    """Calls back at the earliest of the set times."""

    __slots__ = ("_callback", "_clock", "_timer", "_when_ns")

    def __init__(self, clock: Clock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._timer: Timer | None = None
        self._when_ns = 0

    def set(self, when_ns: int) -> None:
        if self._timer is not None:
            if self._when_ns <= when_ns:
                return
            self._timer.cancel()
        self._when_ns = when_ns
        self._timer = self._clock.call_at(when_ns, self._ring)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        self._callback()


class Instance(Protocol):
    """One copy of a model that runs a batch at a time."""

    @property
    def name(self) -> str:
        """`MODEL_GROUP_NUMBER`, as Triton names it."""

    @property
    def is_available(self) -> bool:
        """Whether it accepts a batch now: loaded, idle and alive."""

    def execute(self, calls: Sequence[InferenceCall], done: Callable[[], None]) -> None:
        """Run the calls as one batch. Each of them ends by itself; `done` is called once, when the instance is free
        again (for a decoupled model before the last response) or unavailable."""


class RequestScheduler(Protocol):
    """Decides which calls run when, and on which instance."""

    def submit(self, call: InferenceCall) -> None:
        """Accept a call; it may end at once with an error. Never raises."""

    def instance_changed(self, instance: Instance) -> None:
        """An instance has become available again (after a restart), or unavailable."""

    @property
    def num_pending(self) -> int:
        """Calls that wait for an instance."""

    def stop(self) -> None:
        """Accept no more calls; waiting ones fail as UNAVAILABLE."""


TIMEOUT_EXPIRED = "Request timeout expired"
SEQUENCE_TIMEOUT_EXPIRED = "timeout of the corresponding sequence has been expired"
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"


def tag(call: InferenceCall) -> str:
    """How Triton's sentences name a request."""
    return f"[request id: {call.request.id or '<id_unknown>'}] "


def stopping(call: InferenceCall) -> EngineError:
    return unavailable(tag(call) + STOPPING)
