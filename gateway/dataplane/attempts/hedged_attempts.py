"""The attempts of an inference that a second endpoint gets where the first one is slow.

    start -> delay -> hedge is sent -> its reply begins first: won, the first attempt is cancelled
                                    -> the first attempt's reply begins: lost, the hedge is cancelled
                                    -> the first attempt fails: won, the request goes on with the hedge alone
                                    -> the hedge fails: failed, the request goes on with the first attempt

The front makes the `Hedge`, which carries the second attempt in its protocol. A request counts once, at the endpoint
that answers it. Only the first attempt is hedged: one that is retried has had another endpoint.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

from gateway.dataplane.attempts.front import Attempt, AttemptFront, Carrier, Hedge, deadline_of
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.hedged_targets import hedged_target
from gateway.dataplane.context.route_target import RouteTarget
from gateway.net.timer_wheel import Slot
from gateway.protocol.errors import GatewayError
from gateway.protocol.hedge_outcome import HedgeOutcome, is_answer
from gateway.protocol.sequence import AnySession, Sequence
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine_admission import EngineAdmission
from gateway.upstream.hedging_policy import LatencyPercentile, Suppressed


class _Delay:
    """The time until a hedge is due."""

    __slots__ = ("_attempts", "_slot")

    def __init__(self, attempts: HedgedAttempts[Any], at: float) -> None:
        self._attempts = attempts
        self._slot: Slot = attempts.plane.wheel.add(self, at)

    def stop(self) -> None:
        self._slot.discard(self)

    def expired(self) -> None:
        self.stop()  # else it and its slot would be in a circle
        self._attempts.hedge_due()


class HedgedAttempts(UpstreamAttempts[Carrier]):
    """Of an engine with `hedging:`."""

    __slots__ = ("_delay", "_first", "_hedge", "_latencies", "_overload")

    def __init__(
        self,
        plane: DataPlane,
        front: AttemptFront,
        route_target: RouteTarget,
        session: AnySession | None,
        started_at: float,
    ) -> None:
        super().__init__(plane, front, route_target, session, started_at)
        self._delay: _Delay | None = None
        self._hedge: Hedge | None = None
        self._first: Attempt[Carrier] | None = None
        self._latencies: LatencyPercentile | None = None
        self._overload: EngineAdmission | None = None  # that counts the hedge

    @property
    def plane(self) -> DataPlane:
        return self._plane

    def start(self, now: float, after: GatewayError | None = None) -> None:
        super().start(now, after)
        attempt, route_target = self.attempt, self.route_target
        hedging = route_target.engine.hedging
        if attempt is None or not attempt.is_open or self._num_attempts != 1 or hedging is None:
            return
        session = self.session
        if session is not None and (route_target.is_sticky or type(session) is Sequence):  # its endpoint has its state
            return
        self._first = attempt
        self._latencies = hedging.latencies(self.model(), now)
        hedging.budget.add()
        delay = hedging.delay(self._latencies)
        if delay:
            self._delay = _Delay(self, now + delay)

    def reply_began(self, attempt: Attempt[Carrier], status: int, now: float) -> None:
        if attempt is self._first:
            self._stop_hedge(HedgeOutcome.LOST)
            if self._latencies is not None and is_answer(status):
                self._latencies.observe(now - attempt.sent_at, now)
        super().reply_began(attempt, status, now)

    def gives_way(self, status: int) -> bool:
        if self._hedge is None or not self._hedge.is_sent or is_answer(status):
            return False
        endpoint = self.endpoint
        self._take_over(is_good=endpoint is not None and not endpoint.counts_as_failure(status))
        return True

    def failed(
        self, error: GatewayError, *, was_sent: bool, is_final: bool = False, is_good: bool | None = False
    ) -> None:
        if self._hedge is not None and self._hedge.is_sent and not (self.status or is_final):
            self._take_over(is_good=is_good)
        else:
            super().failed(error, was_sent=was_sent, is_final=is_final, is_good=is_good)

    def _drop(self) -> None:
        self._stop_hedge(HedgeOutcome.LOST)
        super()._drop()

    # The hedge

    def hedge_due(self) -> None:
        """The first attempt has had the time that most replies take."""
        self._delay = None
        first, engine, now = self.attempt, self.route_target.engine, monotonic()
        hedging = engine.hedging
        if first is None or not first.is_open or self.status or hedging is None:
            return
        endpoint = engine.choose(None, now, (*self.tried, first.endpoint), model=self.model())
        why = self._why_not(endpoint, now)
        if why is None and not hedging.budget.take():
            why = Suppressed.BUDGET
        if why is None and endpoint is not None:
            self._start_hedge(endpoint, now)
        elif why is not None:
            self._plane.metrics.hedges_suppressed[engine.name, why.value] += 1

    def _why_not(self, endpoint: Endpoint | None, now: float) -> Suppressed | None:
        engine = self.route_target.engine
        if not self._front.may_hedge():
            return Suppressed.REQUEST
        if endpoint is None or not engine.is_able(endpoint, now):
            return Suppressed.ENDPOINT
        is_full = engine.overload is not None and not engine.overload.has_room(now)
        has_queue = endpoint.load is not None and endpoint.load.waiting > 0
        return Suppressed.OVERLOADED if is_full or has_queue or self._plane.loop_lag.num_shed else None

    def _start_hedge(self, endpoint: Endpoint, now: float) -> None:
        attempt: Attempt[Carrier] = Attempt(endpoint, self.route_target.series(endpoint), now)
        endpoint.in_flight += 1
        attempt.series.in_flight += 1
        if not endpoint.breaker.is_spotless:
            endpoint.breaker.sent(now)
        self._overload = self.route_target.engine.overload
        if self._overload is not None:
            self._overload.in_flight += 1
        self.route_target = hedged_target(self.route_target, HedgeOutcome.LOST)  # unless it wins
        self._hedge = hedge = self._front.hedge(self, attempt)
        try:
            hedge.start(now)
        except GatewayError as error:
            self.hedge_failed(error)

    def hedge_failed(self, error: GatewayError) -> None:
        self._stop_hedge(HedgeOutcome.FAILED, is_good=False)

    def hedge_answered(self, status: int) -> bool:
        hedge = self._hedge
        if hedge is None:
            return False
        if not is_answer(status):
            self._stop_hedge(HedgeOutcome.FAILED, is_good=not hedge.attempt.endpoint.counts_as_failure(status))
            return False
        first, now = self._first, monotonic()
        if first is not None and first.sent_at:
            seconds = now - first.sent_at  # at least: nobody knows when its reply would have come
            if self._latencies is not None:
                self._latencies.observe(seconds, now)
            if seconds > first.endpoint.latency:
                first.endpoint.observe_latency(seconds)
        self._take_over(is_good=None)
        return True

    def _take_over(self, *, is_good: bool | None) -> None:
        """Go on with the hedge alone; `is_good` is what the first attempt says of its endpoint."""
        hedge, self._hedge = self._hedge, None
        assert hedge is not None and self.attempt is not None
        self.was_sent = True
        self._front.cancel_attempt(self.attempt)
        self._close(is_good, goes_on=True, why="hedged")
        self._leave_overload()
        self.attempt = hedge.attempt
        self._count(HedgeOutcome.WON)
        if self._slot is None and self.is_timed:  # the first attempt's time is over
            spec, now = self.route_target.engine.spec, monotonic()
            at = deadline_of(spec, self.started_at + self.waited, hedge.attempt.sent_at, self.expires_at)
            self._slot = self._plane.wheel.add(self, max(at, now)) if at else None
        hedge.take_over()

    def _stop_hedge(self, outcome: HedgeOutcome, *, is_good: bool | None = None) -> None:
        """Send none, or cancel it; `is_good` is what it says of its endpoint."""
        delay, self._delay = self._delay, None
        if delay is not None:
            delay.stop()
        hedge, self._hedge = self._hedge, None
        if hedge is None:
            return
        hedge.cancel()
        attempt = hedge.attempt
        attempt.is_open = False
        self.past = (*self.past, (attempt, monotonic(), f"hedge_{outcome.value}"))
        attempt.endpoint.in_flight -= 1
        attempt.series.in_flight -= 1
        breaker = attempt.endpoint.breaker
        if is_good is None:
            breaker.abandoned()
        elif is_good:
            breaker.succeeded()
        else:
            breaker.failed(monotonic())
        self._leave_overload()
        self._count(outcome)

    def _leave_overload(self) -> None:
        overload, self._overload = self._overload, None
        if overload is not None:
            overload.in_flight -= 1
            if overload.has_waiting:
                self._plane.loop.call_soon(overload.serve, monotonic())

    def _count(self, outcome: HedgeOutcome) -> None:
        self._plane.metrics.hedges[self.route_target.engine.name, outcome.value] += 1
        self.route_target = hedged_target(self.route_target, outcome)
