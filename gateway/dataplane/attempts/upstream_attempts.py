"""The attempts of one request to reach an engine: limits, endpoint, deadline, retries, circuit breaker, replay.

    start -> limits -> endpoint -> sent -> reply_began -> answered
               |          |          |          |
               |          +----------+          |     a further attempt, where it can do no harm: nothing was sent, or
               |          ^          |          |     the request is idempotent, and the engine's budget allows it
               |          +- failed -+          |
               +-------------> fail <-----------+     `AttemptFront.attempts_failed` answers the client

A front (an exchange, a call, a stream) holds one `UpstreamAttempts` and implements `AttemptFront`. It reports what it
sees (`reply_began`, `answered`, `failed`), and ends the request early by `fail` or `abandon`. Each attempt is closed
once: its endpoint's count, its counters, the breaker. After the end no reference to the front is left: no cycle.
"""

from __future__ import annotations

from collections.abc import Collection
from time import monotonic
from typing import Generic

from gateway.dataplane.attempts.endpoint_choice import choose_endpoint, model_at_engine
from gateway.dataplane.attempts.front import ENDED, Attempt, AttemptFront, Carrier, deadline_of
from gateway.dataplane.attempts.queued_admission import AnyAdmission, admission_of
from gateway.dataplane.attempts.sequence_replay import SequenceReplay
from gateway.dataplane.attempts.unknown_model import no_endpoint
from gateway.dataplane.context.active_requests import Stage
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.server_timing import Timing
from gateway.dataplane.context.session_affinity import SequenceDisplacedError
from gateway.net.timer_wheel import Slot
from gateway.observability.arms import Meter
from gateway.observability.metrics import RequestSeries
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import AnySession, Sequence, id_of
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import RetryBudget
from gateway.wire.http1.head import Field


class UpstreamAttempts(Generic[Carrier]):
    """The attempts of one request for one target.

    `attempt` is the latest one; `status` the HTTP status of the reply, 0 until it begins at `first_byte_at`; `waited`
    the seconds that limits have held the request, which its engine's timeout does not count. `expires_at` is the
    client's deadline, 0 where it has none. `is_timed`: the engine's own time limits apply, until `reply_began`.
    `timing` is Server-Timing. `first_endpoint` gets the first attempt where it is set, `tried` get none. `past` are the
    attempts before the latest, each with its end and what became of it; `queued` are those of the seconds `waited` that
    it has stood in the engine's queue.
    """

    __slots__ = (
        *("_admission", "_front", "_num_attempts", "_plane", "_slot"),
        *("attempt", "expires_at", "first_byte_at", "first_endpoint", "is_started", "is_timed", "past", "queued"),
        *("replay", "route_target", "session", "started_at", "status", "timing", "tried", "waited", "was_sent"),
    )

    def __init__(
        self,
        plane: DataPlane,
        front: AttemptFront,
        route_target: RouteTarget,
        session: AnySession | None,
        started_at: float,
    ) -> None:
        self._plane = plane
        self._front = front
        self.route_target = route_target
        self.session = session
        self.started_at = started_at
        self.waited = self.queued = 0.0
        self.past: tuple[tuple[Attempt[Carrier], float, str], ...] = ()
        self.expires_at = 0.0
        self.attempt: Attempt[Carrier] | None = None
        self.status = 0
        self.first_byte_at = 0.0
        self.is_started = False
        self.is_timed = True
        self.was_sent = False  # by some attempt
        self.timing: Timing | None = None
        self.first_endpoint: Endpoint | None = None
        self.tried: tuple[Endpoint, ...] = ()
        self._num_attempts = 0
        self._slot: Slot | None = None  # of the deadline
        self._admission: AnyAdmission | None = None  # where limits apply
        if route_target.is_limited and front.is_inference:
            session_id = id_of(session) if session is not None else None
            self._admission = admission_of(front, route_target, session_id, plane, self, self._admission_decided)
        self.replay: SequenceReplay | None = None  # where the sequence's inputs are stored
        if route_target.replay is not None and type(session) is Sequence:
            self.replay = SequenceReplay(front, plane.affinity, route_target, session, self._sequence_moved, self.fail)

    def resume(self) -> None:
        """Go on with a request that was admitted and broke off: it keeps its place, and counts once."""
        if self._admission is not None:
            self._admission.resume()

    @property
    def is_open(self) -> bool:
        return self.attempt is not None and self.attempt.is_open

    @property
    def endpoint(self) -> Endpoint | None:
        """That of the latest attempt."""
        return self.attempt.endpoint if self.attempt is not None else None

    @property
    def url(self) -> str:
        """The latest endpoint's; empty before the first attempt."""
        return self.attempt.endpoint.url if self.attempt is not None else ""

    @property
    def series(self) -> RequestSeries:
        """The counters of the latest attempt, or of requests that reach no endpoint."""
        return self.attempt.series if self.attempt is not None else self.route_target.series(None)

    @property
    def provider(self) -> str:
        """What the engine speaks, by the name of rules."""
        name: str = self.route_target.engine.spec.protocol.value
        return name

    @property
    def meter(self) -> Meter | None:
        """The meter of the experiment's arm; None where none counts the request."""
        meter = self.route_target.meter
        return meter if meter is not None and self._front.is_inference else None

    def stage(self) -> Stage:
        if self.status:
            return Stage.ANSWERING
        if self._admission is not None and self._admission.is_waiting:
            return Stage.LIMITED
        if self.attempt is None or not self.attempt.is_open:
            return Stage.READING
        return Stage.REQUESTED if self.attempt.sent_on is not None else Stage.CONNECTING

    def timing_fields(self, now: float) -> list[Field]:
        """The `server-timing` field; none where the client did not request it."""
        timing, attempt = self.timing, self.attempt
        if timing is None:
            return []
        sent_at = attempt.sent_at if attempt is not None else 0.0
        return [timing.field(self.waited, sent_at, now, self.url if self.route_target.is_named else "")]

    # Attempts

    def start(self, now: float, after: GatewayError | None = None) -> None:
        """Make an attempt; `after` is the failure of the one before."""
        route_target, admission = self.route_target, self._admission
        self.is_started = True
        if admission is not None:
            try:
                admission.start(now)
            except GatewayError as error:
                self.fail(error)
                return
            if admission.is_waiting:
                return
        try:
            if self.session is None and self.first_endpoint is None and route_target.engine.is_plain:  # mostly
                endpoint = route_target.engine.choose(None, now, self.tried)
            elif self.first_endpoint is not None and self.first_endpoint not in self.tried:
                endpoint = self.first_endpoint
            else:
                endpoint = choose_endpoint(self._front, route_target, self.session, self._plane, now, self.tried)
        except SequenceDisplacedError as displaced:
            self._replay_sequence(displaced)
            return
        except GatewayError as error:
            self.fail(error)
            return
        if endpoint is None:
            refusal = no_endpoint(self._front, route_target, self.model(), now, self.lists_are_old)
            waits = self._plane.endpoint_waits
            if refusal.kind is ErrorKind.NOT_FOUND or not waits.take(self, route_target.engine, now):
                self.fail(after or refusal)
            return
        series = route_target.series(endpoint)
        attempt: Attempt[Carrier] = Attempt(endpoint, series, now)
        self.attempt = attempt
        self._num_attempts += 1
        endpoint.in_flight += 1
        series.in_flight += 1
        if not endpoint.breaker.is_spotless:
            endpoint.breaker.sent(now)
        at = self.expires_at
        if self.is_timed:
            at = deadline_of(route_target.engine.spec, self.started_at + self.waited, now, at)
        if at:
            self._slot = self._plane.wheel.add(self, at)
        try:
            self._front.start_attempt(attempt, now)
        except GatewayError as error:
            self.fail(error)

    def model(self) -> ModelName | None:
        """The requested model and version, by the name at the engine; None where that is unknown."""
        return model_at_engine(self._front, self.route_target)

    def clear_deadline(self) -> None:
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None

    def reply_began(self, attempt: Attempt[Carrier], status: int, now: float) -> None:
        """The head of the reply has come: only the client's own deadline remains."""
        if self._slot is not None and not self.expires_at:
            self._slot.discard(self)
            self._slot = None
        self.is_timed = False
        self.status = status
        self.first_byte_at = now
        attempt.endpoint.observe_latency(now - attempt.sent_at)
        if self._admission is not None:
            self._admission.replied(attempt, status, now)

    def answered(
        self, attempt: Attempt[Carrier], request_bytes: int, response_bytes: int, now: float, *, is_good: bool
    ) -> None:
        """The reply is whole: end the request and count it. `is_good`: the reply speaks well of the endpoint."""
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None
        self._close(is_good)
        self.route_target.engine.budget.requests += 1
        series, started_at = attempt.series, self.started_at
        series.request_bytes += request_bytes
        series.response_bytes += response_bytes
        first_seconds = (self.first_byte_at or now) - started_at
        series.count(self.status, now - started_at, first_seconds, now - attempt.sent_at)
        self._front, self.replay = ENDED, None

    def failed(
        self, error: GatewayError, *, was_sent: bool, is_final: bool = False, is_good: bool | None = False
    ) -> None:
        """The attempt ended without a whole reply: make another one where that can do no harm, else fail. `is_good` is
        what it says of the endpoint, None where it says nothing; `is_final`: no time is left."""
        is_over = bool(self.status) or is_final
        retries = not is_over and self._may_retry(was_sent)
        replays = not is_over and not retries and self.replay is not None and self.replay.may_follow(error)
        engine = self.route_target.engine
        waits = not (is_over or was_sent or retries or replays) and engine.spec.wait_for_endpoint > self.waited
        self._drop()
        self._close(is_good, goes_on=retries or replays or waits, why=error.kind.value)
        if retries:
            self._retry(error)
        elif replays and self.attempt is not None and self.replay is not None:
            self._replay_sequence(self.replay.displaced(self.attempt.endpoint, f"failed: {error.message}"))
        elif not (waits and self._plane.endpoint_waits.take(self, engine, monotonic())):
            self.fail(error)

    def gives_way(self, status: int) -> bool:
        """Whether a hedge takes over from an attempt with a reply of this HTTP status."""
        return False

    def check_silence(self, active_at: float, now: float) -> None:
        """Fail where the engine has sent nothing since `active_at`, for longer than its idle timeout."""
        limit = self.route_target.engine.spec.idle_timeout
        if limit and now - active_at > limit:
            if self.attempt is not None:
                self.attempt.endpoint.timed_out(active_at, now)
            self.failed(GatewayError(ErrorKind.DEADLINE, f"the engine sent nothing for {limit:g} s"), was_sent=True)

    def try_elsewhere(
        self, error: GatewayError, *, is_good: bool, was_sent: bool = True, budget: RetryBudget | None = None
    ) -> bool:
        """Whether an endpoint that was not tried yet takes over from one that cannot serve."""
        seen = (*self.tried, self.endpoint)
        others = self.route_target.engine.serving(self.model(), monotonic())
        is_there = any(other not in seen and other.condition is not Readiness.DOWN for other in others)
        if not is_there or not self._may_retry(was_sent, budget):
            return False
        self._drop()
        self._close(is_good, goes_on=True, why=error.kind.value)
        self._retry(error)
        return True

    def lists_are_old(self, endpoints: Collection[Endpoint]) -> None:
        """Have these endpoints' lists of models read again."""
        self._plane.look_at_models([(self.route_target.engine.name, endpoint.url) for endpoint in endpoints])

    def sequence_forgotten(self, text: bytes) -> bool:
        """Whether this refusal says that the engine does not know the request's sequence; another attempt follows."""
        if self.replay is None or not self.replay.is_forgotten(text):
            return False
        forgotten = GatewayError(ErrorKind.UPSTREAM_RESET, "it knows nothing of the sequence")
        self.failed(forgotten, was_sent=True, is_good=None)
        return True

    def expired(self) -> None:
        """The time until the first byte is over, for this attempt or for all; or the client's deadline has passed."""
        self._slot = None
        now = monotonic()
        attempt = self.attempt
        if attempt is not None and attempt.sent_on is not None and not self._front.waits_for_client():
            attempt.endpoint.timed_out(attempt.sent_at, now)
        if self.expires_at and now >= self.expires_at:
            self.fail(GatewayError(ErrorKind.DEADLINE, "the client's deadline has passed"))
            return
        if not self.is_timed:
            self._slot = self._plane.wheel.add(self, self.expires_at) if self.expires_at else None
            return
        spec = self.route_target.engine.spec
        is_final = bool(spec.timeout) and now - self.started_at - self.waited >= spec.timeout
        limit = spec.timeout if is_final else spec.try_timeout
        self.failed(
            GatewayError(ErrorKind.DEADLINE, f"the engine did not answer within {limit:g} s"),
            was_sent=attempt is not None and attempt.sent_on is not None,
            is_final=is_final,
            is_good=None if self._front.waits_for_client() else False,
        )

    def _retry(self, error: GatewayError) -> None:
        attempt = self.attempt
        if attempt is not None:
            attempt.series.retries += 1
            tried = (*self.tried, attempt.endpoint)
            # Where every endpoint has failed once, the next attempt may go to any of them again.
            usable = self.route_target.engine.serving(self.model(), monotonic())
            self.tried = () if all(endpoint in tried for endpoint in usable) else tried
            if self.timing is not None:
                self.timing.failed(attempt.sent_at, monotonic())
        self.start(monotonic(), error)

    def _may_retry(self, was_sent: bool, budget: RetryBudget | None = None) -> bool:
        retry, front = self.route_target.engine.spec.retry, self._front
        if self._num_attempts > retry.attempts or not front.is_replayable():
            return False
        if was_sent and not front.is_idempotent(retry.idempotent):
            return False
        return (budget or self.route_target.engine.budget).take(monotonic())

    def _drop(self) -> None:
        """Cancel the wait for a limit or an endpoint, the replay, the attempt: whatever is under way."""
        attempt, engine = self.attempt, self.route_target.engine
        if engine.spec.wait_for_endpoint:
            self._plane.endpoint_waits.leave(self, engine)
        if attempt is not None:
            self.was_sent = self.was_sent or bool(attempt.sent_at)
            if attempt.is_open:
                self._front.cancel_attempt(attempt)
        if self._admission is not None and self._admission.is_waiting:
            self._end_admission()
        if self.replay is not None and self.replay.cancel():
            self._end_admission()
        self.clear_deadline()

    def _close(self, is_good: bool | None, *, goes_on: bool = False, why: str = "") -> None:
        """Close the attempt: `is_good` is what it says of the endpoint, None where it says nothing. The request is over
        as well, unless it `goes_on`; `why` is then what became of the attempt."""
        attempt, session = self.attempt, self.session
        if attempt is not None and attempt.is_open:
            attempt.is_open = False
            if goes_on:
                self.past = (*self.past, (attempt, monotonic(), why))
            endpoint = attempt.endpoint
            endpoint.in_flight -= 1
            attempt.series.in_flight -= 1
            if is_good:
                if not endpoint.breaker.is_spotless:
                    endpoint.breaker.succeeded()
                if session is not None and type(session) is Sequence and session.ends:
                    self._plane.affinity.ended(session)
            elif is_good is None:
                endpoint.breaker.abandoned()
            else:
                endpoint.breaker.failed(monotonic())
        if self._admission is not None and not goes_on:
            self._end_admission()

    # The ends beside `answered`

    def fail(self, error: GatewayError) -> None:
        """End the request with an error: count it, and have the front answer the client."""
        front, series = self._front, self.series
        self._drop()
        self._close(None)
        series.count_error(error.kind.value)
        status = (self.status if front.status_comes_first else 0) or error.status.http
        series.count_failure(status, monotonic() - self.started_at)
        meter = self.meter
        if meter is not None:
            front.count_failed(meter, error)
        if self.replay is not None:
            self.replay.settle(was_sent=self.was_sent)
        front.attempts_failed(
            self.route_target.client_error(error, self.url if self.attempt is not None else ""), status
        )
        self._front, self.replay = ENDED, None

    def abandon(self, reason: str, status: int = 0) -> None:
        """End the request without an answer of ours: its client is gone, or gets `status` from its connection.
        `reason` is counted as an error; empty where nothing is wrong."""
        front, series = self._front, self.series
        self._drop()
        self._close(None)
        if self.replay is not None:
            self.replay.settle(was_sent=self.was_sent)
        meter = self.meter
        if meter is not None:
            front.count_abandoned(meter, reason)
        if reason:
            series.count_error(reason)
            if status and not (self.status and front.status_comes_first):
                self.status = status
                series.count_failure(status, monotonic() - self.started_at)
        self._front, self.replay = ENDED, None

    # Limits

    def charge(self) -> None:
        """Count one more request of a stream under the same grant.

        Raises: GatewayError where a limit is reached.
        """
        if self._admission is not None:
            self._admission.charge()

    def _admission_decided(self, error: GatewayError | None) -> None:
        """The request has waited for its limits."""
        if error is not None:
            self.fail(error)
            return
        now = monotonic()
        self.waited = now - self.started_at
        if self._admission is not None:
            self.queued = self._admission.seconds_queued
        self.start(now)

    def _end_admission(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.end()

    # Replay

    def _replay_sequence(self, displaced: SequenceDisplacedError) -> None:
        """Have another endpoint replay the sequence's inputs; the request waits."""
        limit = self.route_target.engine.spec.timeout
        if self.replay is None:
            self.fail(displaced)
        else:
            self._num_attempts += 1
            self.replay.start(displaced, self.started_at + self.waited + limit if limit else 0.0, self.expires_at)

    def _sequence_moved(self, endpoint: Endpoint) -> None:
        self.tried, self.first_endpoint = (), endpoint
        self.start(monotonic())
