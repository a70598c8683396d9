"""Admits the requests of one engine in one worker: at once, from a queue, or not at all.

The engine's endpoints together get as many requests as their limits allow. Others wait in a fair queue; what cannot be
served in its time is refused at once. Each admitted request is reported as ended once, whatever becomes of it.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from math import ceil
from typing import Protocol

from gateway.config.engine_specs import EngineSpec
from gateway.config.overload_specs import OverloadSpec
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.adaptive_limit import AdaptiveLimit
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.fair_queue import FairQueue, Waiting, Weights
from gateway.upstream.slow_uploads import SlowUploads, Upload

# How long the sum of the endpoints' limits is valid.
_CAPACITY_SECONDS = 0.02
# How much one request moves the averages of times.
_EWMA_SHARE = 0.05
# Departures are counted in windows of at least this length.
_RATE_SECONDS = 0.25
_RATE_SHARE = 0.5
_LONGEST_RETRY_AFTER = 60


class Refusal(Enum):
    """Why a request is refused."""

    FULL = "full"  # the queue, and nothing in it is less important
    LATE = "late"  # it could not be answered in time
    WAITED = "waited"  # it has waited for as long as it may
    DISPLACED = "displaced"  # by a more important one
    SHED = "shed"  # the worker's event loop is late


class AdmissionRequest(Waiting, Upload, Protocol):
    """A request that wants to be admitted; `wait_until` is the time until which it may wait."""

    @property
    def wait_until(self) -> float: ...

    def admit(self) -> None: ...

    def refuse(self, error: GatewayError) -> None: ...


class HasEndpoints(Protocol):
    """An engine; with other rules there is another one of the same name."""

    @property
    def name(self) -> str: ...
    @property
    def spec(self) -> EngineSpec: ...
    @property
    def endpoints(self) -> list[Endpoint]: ...
    @property
    def overload(self) -> EngineAdmission | None: ...


class EngineAdmission:
    """The limits of an engine's endpoints, and the queue before them. `class_names` begin with the highest."""

    __slots__ = (
        "_capacity",
        "_departures",
        "_engine",
        "_fresh_until",
        "_is_serving",
        "_limits",
        "_queue",
        "_rate",
        "_rate_since",
        "_seconds_each",
        "_uploads",
        "admitted",
        "class_names",
        "in_flight",
        "queued",
        "refused",
        "spec",
        "weights",
    )

    def __init__(
        self, spec: OverloadSpec, engine: HasEndpoints, class_names: tuple[str, ...], weights: Weights
    ) -> None:
        self.spec = spec
        self.class_names = class_names
        self.weights = weights
        self._engine = engine
        self._limits: dict[Endpoint, AdaptiveLimit] = {}
        self._queue: FairQueue[AdmissionRequest] = FairQueue(spec.queue, weights)
        self._capacity = 0
        self._fresh_until = 0.0
        self._is_serving = False
        self._seconds_each = 0.0  # from a request's admission to its end; 0 until one has ended
        self._rate = 0.0  # requests that end in a second, while others wait; 0 until it is known
        self._rate_since = 0.0
        self._departures = 0
        self._uploads = SlowUploads()
        self.in_flight = 0  # requests that the engine has, but for slow uploads
        self.admitted = 0
        self.queued = 0  # requests that had to wait, since the start
        self.refused: Counter[tuple[str, str]] = Counter()  # by class and `Refusal`

    def __repr__(self) -> str:
        what = f"{self.in_flight} of {self._capacity} in flight, {self._queue.size} wait"
        return f"<EngineAdmission {self._engine.name}: {what}>"

    def use(self, engine: HasEndpoints) -> None:
        """The same engine by other rules, which keep `spec` and the classes."""
        self._engine = engine
        self._fresh_until = 0.0

    @property
    def waiting(self) -> dict[str, int]:
        """The requests in the queue, by class."""
        return dict(zip(self.class_names, self._queue.sizes, strict=True))

    @property
    def limits(self) -> dict[str, int]:
        """The limits of the endpoints, by URL."""
        return {endpoint.url: limit.value for endpoint, limit in self._limits.items()}

    # Requests

    def has_room(self, now: float) -> bool:
        """Whether a request may go at once."""
        if self._queue.size:
            return False
        # First the capacity: counting it brings `in_flight` up to date
        return (self._capacity if now < self._fresh_until else self._count_capacity(now)) > self.in_flight

    def enter(self, request: Upload, now: float) -> None:
        """A request is admitted."""
        self._uploads.entered(request, now)
        self.in_flight += 1
        self.admitted += 1

    def wait(self, request: AdmissionRequest, now: float) -> None:
        """Queue a request that has found no room.

        Raises: GatewayError(OVERLOADED).
        """
        queue = self._queue
        seconds = queue.ahead_of(request.level, request.tenant) / self._rate if self._rate else 0.0
        if now + seconds > request.wait_until:
            raise self._refusal(request, Refusal.LATE, seconds)
        if queue.size >= self.spec.queue.max_requests:
            displaced = queue.displace(request.level, request.tenant) if queue.size else None
            if displaced is None:
                raise self._refusal(request, Refusal.FULL, seconds)
            displaced.refuse(self._refusal(displaced, Refusal.DISPLACED, seconds))
        if not queue.size:  # the first one
            self._rate_since, self._departures = now, 0
        queue.add(request)
        self.queued += 1

    def wait_ended(self, request: AdmissionRequest) -> GatewayError:
        """The error for a queued request that has waited for as long as it may."""
        self._queue.remove(request)
        return self._refusal(request, Refusal.WAITED, self._queue.size / self._rate if self._rate else 0.0)

    def leave_queue(self, request: AdmissionRequest) -> None:
        """The client of a queued request is gone."""
        self._queue.remove(request)

    def shed(self, request: AdmissionRequest) -> GatewayError:
        """The error for a request that the worker has no time for."""
        return self._refusal(request, Refusal.SHED, 1.0)

    def leave(self, request: Upload, admitted_at: float, now: float) -> None:
        """An admitted request has ended."""
        if not self._uploads.left(request):
            return
        self.in_flight -= 1
        self._departures += 1
        seconds = now - admitted_at
        if self._seconds_each:
            self._seconds_each += (seconds - self._seconds_each) * _EWMA_SHARE
        else:
            self._seconds_each = seconds

    def may_serve(self, now: float) -> bool:
        """Whether there is room though requests wait: slow uploads have given theirs back."""
        self.in_flight += self._uploads.count(now)
        return self._count_capacity(now) > self.in_flight

    @property
    def has_waiting(self) -> bool:
        return bool(self._queue.size)

    @property
    def seconds_each(self) -> float:
        return self._seconds_each

    def serve(self, now: float) -> None:
        """Admit those that are next, as far as there is room. One of them may end at once, and leave."""
        queue = self._queue
        if self._is_serving or not queue.size:
            return
        elapsed = now - self._rate_since
        if elapsed >= _RATE_SECONDS:
            rate = self._departures / elapsed
            self._rate += (rate - self._rate) * (_RATE_SHARE if self._rate else 1.0)
            self._rate_since, self._departures = now, 0
        self._is_serving = True
        try:
            while queue.size and self._count_capacity(now) > self.in_flight:
                request = queue.pop(now)
                self.enter(request, now)
                request.admit()
        finally:
            self._is_serving = False

    def _refusal(self, request: AdmissionRequest, why: Refusal, seconds: float) -> GatewayError:
        name = self.class_names[request.level]
        self.refused[name, why.value] += 1
        retry_after = min(max(1, ceil(seconds)), _LONGEST_RETRY_AFTER)
        of_class = f" of class '{name}'" if len(self.class_names) > 1 else ""
        text = _TEXTS[why].format(waiting=self._queue.size, of_class=of_class, engine=self._engine.name)
        return GatewayError(ErrorKind.OVERLOADED, text, ((b"retry-after", b"%d" % retry_after),))

    # Endpoints

    def replied(self, endpoint: Endpoint, latency: float, now: float) -> None:
        """A good reply of an endpoint has begun, `latency` after the request was sent."""
        self._limit(endpoint, now).observe(latency, endpoint.in_flight, now, self._seconds_each)

    def with_room(self, endpoints: list[Endpoint]) -> list[Endpoint]:
        """Those below their limits; all where none is."""
        limits = self._limits
        return [
            endpoint
            for endpoint in endpoints
            if (limit := limits.get(endpoint)) is None or endpoint.in_flight < limit.value
        ] or endpoints

    def _limit(self, endpoint: Endpoint, now: float) -> AdaptiveLimit:
        limit = self._limits.get(endpoint)
        if limit is None:
            limit = self._limits[endpoint] = AdaptiveLimit(self.spec.concurrency, now)
        return limit

    def _count_capacity(self, now: float) -> int:
        """The sum of the limits of the endpoints that take requests. Where there is none, requests fail soon enough."""
        if now >= self._fresh_until:
            endpoints = self._engine.endpoints
            if len(self._limits) > len(endpoints):
                self._limits = {each: self._limits[each] for each in endpoints if each in self._limits}
            for endpoint in endpoints:
                self._limit(endpoint, now).report(endpoint.load, endpoint.in_flight)
            self._fresh_until = now + _CAPACITY_SECONDS
            self.in_flight += self._uploads.count(now)
        able = [endpoint for endpoint in self._engine.endpoints if endpoint.condition is not Readiness.DOWN]
        serving = [each for each in able if each.takes_new and each.breaker.is_closed] or able
        if serving:
            self._capacity = sum(self._limit(endpoint, now).value for endpoint in serving)
        else:
            self._capacity = self.in_flight + 1
        return self._capacity


def admission_of_engine(
    engine: HasEndpoints, class_names: tuple[str, ...], weights: Weights, before: HasEndpoints | None
) -> EngineAdmission:
    """The admission of an engine with `overload:`; that of the engine `before`, where its declaration is the same."""
    spec = engine.spec.overload
    assert spec is not None
    known = before.overload if before is not None else None
    if known is not None and (known.spec, known.class_names, known.weights) == (spec, class_names, weights):
        return known
    return EngineAdmission(spec, engine, class_names, weights)


_TEXTS = {
    Refusal.FULL: "engine '{engine}' is overloaded: {waiting} requests wait already{of_class}",
    Refusal.LATE: "engine '{engine}' is overloaded: a request{of_class} could not be answered in its time",
    Refusal.WAITED: "engine '{engine}' is overloaded: the request{of_class} has waited as long as it may",
    Refusal.DISPLACED: "engine '{engine}' is overloaded: the request{of_class} has given way to a more urgent one",
    Refusal.SHED: "the gateway is overloaded: it takes no requests{of_class} at the moment",
}
