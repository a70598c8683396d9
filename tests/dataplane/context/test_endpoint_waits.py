"""Requests that wait for an endpoint, by a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.config.engine_specs import ActivatorSpec, ConnectionSpec, EndpointSpec, EngineSpec
from gateway.dataplane.context.endpoint_waits import EndpointWaits
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.engine import Engine


class Request:
    """Goes to its engine as soon as it may."""

    def __init__(self, expires_at: float = 0.0, then: Callable[[Request], None] = lambda request: None) -> None:
        self.expires_at = expires_at
        self.waited = 0.0
        self.started_at = 0.0
        self.error: GatewayError | None = None
        self._then = then

    def start(self, now: float) -> None:
        self.started_at = now
        self._then(self)

    def fail(self, error: GatewayError) -> None:
        self.error = error


class Waits:
    """The waits under test, with a clock."""

    def __init__(self, max_pending: int = 1000) -> None:
        self.now = 100.0
        self.timers: list[Callable[[], None]] = []
        self.waits = EndpointWaits(lambda seconds, tick: self.timers.append(tick), lambda: self.now)
        self.wanted: list[str] = []
        self.waits.report = self.wanted.append
        spec = EngineSpec(
            "it",
            (EndpointSpec("http://e:80"),),
            wait_for_endpoint=10.0,
            activator=ActivatorSpec("http://a/start"),
            connections=ConnectionSpec(max_pending=max_pending),
        )
        self.engine = Engine(spec)
        self.condition = Readiness.DOWN

    @property
    def condition(self) -> Readiness | None:
        return self.engine.endpoints[0].condition

    @condition.setter
    def condition(self, condition: Readiness) -> None:
        self.engine.endpoints[0].condition = condition

    def take(self, request: Request) -> bool:
        return self.waits.take(request, self.engine, self.now)

    def tick(self, seconds: float = 0.25) -> None:
        self.now += seconds
        timers, self.timers[:] = self.timers[:], []
        assert len(timers) <= 1
        for timer in timers:
            timer()


def test_requests_go_on_in_their_order() -> None:
    """Once an endpoint is up, the first few go on, then twice as many each time; what they have waited is known."""
    it = Waits()
    requests = [Request() for _ in range(20)]
    assert all(map(it.take, requests))
    it.tick()
    assert not any(request.started_at for request in requests)
    it.condition = Readiness.READY
    gone = []
    while it.timers:
        it.tick()
        gone.append(sum(bool(request.started_at) for request in requests))
    assert gone == [4, 12, 20]
    assert [request.waited for request in requests] == [0.5] * 4 + [0.75] * 8 + [1.0] * 8
    assert it.waits.outcomes == {("it", "went_on"): 20}
    assert it.waits.waiting == {}


def test_one_tries_again_after_a_failure() -> None:
    """An endpoint that is only said to be up, and refuses, gets one request at a time until one stays there."""
    it = Waits()
    fails = True

    def then(request: Request) -> None:
        if fails:
            assert it.take(request)

    requests = [Request(then=then) for _ in range(10)]
    assert all(map(it.take, requests))
    it.condition = Readiness.READY
    it.tick()
    tried = [sum(request.started_at == it.now for request in requests)]
    for _ in range(3):
        it.tick()
        tried.append(sum(request.started_at == it.now for request in requests))
    assert tried == [4, 1, 1, 1]
    fails = False
    it.tick()
    it.tick()
    assert it.waits.waiting == {"it": 7}


def test_waiting_ends() -> None:
    """A request is refused after the engine's limit over all of its waits, with when to retry, or when its own deadline
    has passed."""
    it = Waits()
    patient, hasty = Request(), Request(expires_at=it.now + 3.0)
    patient.waited = 4.0
    assert it.take(patient) and it.take(hasty)
    it.tick(2.9)
    assert patient.error is None and hasty.error is None
    it.tick(0.2)
    assert hasty.error is not None and hasty.error.kind is ErrorKind.DEADLINE
    it.tick(3.0)
    assert patient.error is not None and patient.error.kind is ErrorKind.NO_HEALTHY_ENDPOINT
    assert patient.error.fields == ((b"retry-after", b"10"),)
    assert not it.timers and it.waits.outcomes == {("it", "timed_out"): 2}
    patient.waited = 10.0
    assert not it.take(patient)


def test_the_line_is_bounded() -> None:
    """Beyond `connections.max_pending` a request is refused as overloaded; one that leaves makes room."""
    it = Waits(max_pending=1)
    first, second, third = Request(), Request(), Request()
    assert it.take(first) and it.take(second)
    assert second.error is not None and second.error.kind is ErrorKind.OVERLOADED
    it.waits.leave(first, it.engine)
    assert it.take(third) and third.error is None
    assert it.waits.holds(third, it.engine) and not it.waits.holds(first, it.engine)
    assert it.waits.outcomes == {("it", "refused"): 1, ("it", "left"): 1}


def test_the_engine_is_wanted_while_requests_wait() -> None:
    """Its name is reported with the first request, then about once a second until none waits; that of an engine
    without an activator is not."""
    it = Waits()
    it.take(Request())
    it.take(Request())
    assert it.wanted == ["it"]
    it.tick()
    assert it.wanted == ["it"]
    it.tick(1.0)
    assert it.wanted == ["it", "it"]
    it.condition = Readiness.READY
    it.tick(2.0)
    it.tick(2.0)
    assert it.wanted == ["it", "it"]
    other = Engine(EngineSpec("other", (EndpointSpec("http://e:80"),), wait_for_endpoint=1.0))
    assert it.waits.take(Request(), other, it.now)
    assert it.wanted == ["it", "it"]


@pytest.mark.parametrize("seconds", [0.0])
def test_without_the_key_none_waits(seconds: float) -> None:
    """An engine without `wait_for_endpoint` lets no request wait."""
    it = Waits()
    engine = Engine(EngineSpec("other", (EndpointSpec("http://e:80"),), wait_for_endpoint=seconds))
    assert not it.waits.take(Request(), engine, it.now)
    assert not it.wanted and not it.timers
