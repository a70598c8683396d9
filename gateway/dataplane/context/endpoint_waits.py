"""Requests that wait while no endpoint of their engine is up (`wait_for_endpoint` of the rules).

They are looked at a few times a second: one whose time is over is refused, and where an endpoint may serve, the first
ones go on, then twice as many each time, until one comes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import inf
from time import monotonic
from typing import Protocol

from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.engine import Engine

_TICK_SECONDS = 0.25
# Between two reports that an engine is wanted.
_REPORT_SECONDS = 1.0
# Requests that go on at once where an endpoint has come up.
_FIRST_BATCH = 4


class WaitingRequest(Protocol):
    """What waits: the attempts of a request."""

    expires_at: float
    waited: float

    def start(self, now: float) -> None: ...

    def fail(self, error: GatewayError) -> None: ...


class _Line:
    """The requests that wait for one engine, each with when it came and how long it may stay."""

    __slots__ = ("batch", "engine", "requests")

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests: dict[WaitingRequest, tuple[float, float]] = {}
        self.batch = _FIRST_BATCH  # how many may go on next


class EndpointWaits:
    """All that wait in one worker. `call_later` is the event loop's; `report` gets the name of an engine with an
    activator that requests wait for, again and again while they do."""

    def __init__(
        self, call_later: Callable[[float, Callable[[], None]], object], clock: Callable[[], float] = monotonic
    ) -> None:
        self._call_later = call_later
        self._clock = clock
        self._lines: dict[Engine, _Line] = {}
        self._engines: Mapping[str, Engine] = {}  # of the rules in force
        self._is_ticking = False
        self._reported: dict[str, float] = {}  # when, by engine
        self.report: Callable[[str], None] = lambda engine: None
        self.outcomes: Counter[tuple[str, str]] = Counter()  # by engine: went_on, timed_out, refused, left

    def use(self, engines: Mapping[str, Engine]) -> None:
        """These are the engines of the rules in force: requests that wait by earlier ones go to their endpoints."""
        self._engines = engines

    @property
    def waiting(self) -> dict[str, int]:
        """Requests that wait now, by engine."""
        waiting = Counter[str]()
        for engine, line in self._lines.items():  # those of the rules in force, and of earlier ones
            waiting[engine.name] += len(line.requests)
        return waiting

    def holds(self, request: WaitingRequest, engine: Engine) -> bool:
        line = self._lines.get(engine)
        return line is not None and request in line.requests

    def take(self, request: WaitingRequest, engine: Engine, now: float) -> bool:
        """Whether the request waits, or is refused since too many do; False where it has waited long enough, or the
        rules let none wait."""
        left = engine.spec.wait_for_endpoint - request.waited
        if left <= 0.0:
            return False
        line = self._lines.get(engine)
        if line is None:
            line = self._lines[engine] = _Line(engine)
            self.want(engine)
        most = engine.spec.connections.max_pending
        if len(line.requests) >= most:
            self.outcomes[engine.name, "refused"] += 1
            what = f"no endpoint is up, and {most} requests wait for one (connections.max_pending)"
            request.fail(GatewayError(ErrorKind.OVERLOADED, what))
            return True
        if request.waited:  # it has been here
            line.batch = 1
        line.requests[request] = now, now + left
        if not self._is_ticking:
            self._is_ticking = True
            self._call_later(_TICK_SECONDS, self._tick)
        return True

    def leave(self, request: WaitingRequest, engine: Engine) -> None:
        """It waits no more: its client is gone, or its time is over."""
        line = self._lines.get(engine)
        if line is not None and line.requests.pop(request, None) is not None:
            self.outcomes[engine.name, "left"] += 1

    def want(self, engine: Engine) -> None:
        """An engine is down that a request could go to: its activator may start it."""
        if engine.spec.activator is None:
            return
        now = self._clock()
        if now - self._reported.get(engine.name, -inf) >= _REPORT_SECONDS:
            self._reported[engine.name] = now
            self.report(engine.name)

    def _tick(self) -> None:
        self._is_ticking = False
        now = self._clock()
        for engine, line in list(self._lines.items()):
            self._end_late(line, now)
            successor = self._engines.get(engine.name, engine)
            if successor is not engine:
                engine.follow(successor)
            if may_serve(line.engine):
                batch, line.batch = list(line.requests)[: line.batch], 2 * line.batch
                for request in batch:
                    self._go_on(request, line, now)
            if not line.requests:
                del self._lines[engine]
            else:
                self.want(engine)
        if self._lines and not self._is_ticking:
            self._is_ticking = True
            self._call_later(_TICK_SECONDS, self._tick)

    def _end_late(self, line: _Line, now: float) -> None:
        for request, (_, until) in list(line.requests.items()):
            is_expired = 0.0 < request.expires_at <= now
            if not is_expired and now < until:
                continue
            del line.requests[request]
            self.outcomes[line.engine.name, "timed_out"] += 1
            if is_expired:
                request.fail(GatewayError(ErrorKind.DEADLINE, "the deadline has passed, and no endpoint is up"))
                continue
            limit = line.engine.spec.wait_for_endpoint
            fields = ((b"retry-after", b"%d" % max(1, round(limit))),)
            what = f"no endpoint has come up within {limit:g} s"
            request.fail(GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, what, fields))

    def _go_on(self, request: WaitingRequest, line: _Line, now: float) -> None:
        joined = line.requests.pop(request, None)
        if joined is not None:  # else the end of another one has ended it
            self.outcomes[line.engine.name, "went_on"] += 1
            request.waited += now - joined[0]
            request.start(now)


def may_serve(engine: Engine) -> bool:
    """Whether some endpoint is not known to be down."""
    return any(endpoint.condition is not Readiness.DOWN for endpoint in engine.endpoints)
