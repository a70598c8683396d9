"""The tries of one request, whatever it speaks: an endpoint chosen, counted and timed, and another one where that can
do no harm.

However a request ends, each of its tries passes `_leave` once (the endpoint's count and breaker).
"""

from __future__ import annotations

from abc import abstractmethod
from time import monotonic

from gateway.dataplane.attempts.sequence_replay import SequenceReplay
from gateway.dataplane.attempts.sequence_tries import SequenceTries
from gateway.dataplane.context.active_request import Stage
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.outcome import Generated
from gateway.dataplane.context.session_affinity import SequenceDisplacedError
from gateway.dataplane.context.snapshot import Lane
from gateway.limits.pending import Grant, Pending
from gateway.net.timer_wheel import Slot
from gateway.observability.arms import Meter
from gateway.observability.metrics import RequestSeries
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import Sequence
from gateway.upstream.endpoint import Endpoint


class Tries(SequenceTries):
    """What every front's requests do alike. A subclass sends and cancels (`_ask`, `_abandon`), tells its caller
    (`_fail`), and knows whether its request can be sent again."""

    __slots__ = (
        "_endpoint",
        "_expires_at",
        "_first",
        "_grant",
        "_is_trying",
        "_lane",
        "_plane",
        "_sent_at",
        "_series",
        "_session",
        "_slot",
        "_started_at",
        "_status",
        "_tried",
        "_waited",
    )

    def __init__(self, plane: DataPlane, lane: Lane | None, session: str | None) -> None:
        self._plane = plane
        self._lane = lane
        self._session = session
        self._started_at = monotonic()
        self._waited = 0.0  # seconds, until the limits let it go: the engine's time is not spent by them
        self._expires_at = 0.0  # when the client's own patience ends, if it told
        self._first: Endpoint | None = None
        self._endpoint: Endpoint | None = None
        self._series: RequestSeries | None = None
        self._slot: Slot | None = None
        self._grant: Grant | Pending | None = None  # of the lane's limits
        self._replay: SequenceReplay | None = None  # of its sequence
        self._is_trying = False
        self._tried: tuple[Endpoint, ...] = ()
        self._attempts = 0
        self._sent_at = 0.0
        # Once there is a status, the caller has read it and errors cannot change it any more.
        self._status = 0

    # What a front does in its own way

    @abstractmethod
    def _ask(self, endpoint: Endpoint, now: float) -> None:
        """Send the request, now or when there is a connection.

        Raises: GatewayError where too many wait for one already.
        """

    @abstractmethod
    def _abandon(self) -> None:
        """Stop the try under way, whatever its stage; nothing more is heard of it."""

    @abstractmethod
    def _fail(self, error: GatewayError) -> None:
        """Nobody answers this request, or not to the end: tell the caller."""

    @abstractmethod
    def _is_idempotent(self, declared: str) -> bool:
        """Whether engines may see it twice; `declared` is the engine's `retry.idempotent`."""

    def _prompt(self) -> bytes | memoryview | None:
        """What a language model reads of the request, or will; None where nobody knows."""
        return None

    @property
    @abstractmethod
    def _was_sent(self) -> bool:
        """Whether something of the try under way may have reached the endpoint."""

    # Trying

    def start_at(self, endpoint: Endpoint) -> None:
        """Try this one first: somebody has chosen it already."""
        self._first = endpoint

    @property
    def endpoint(self) -> Endpoint | None:
        """The one that was tried last."""
        return self._endpoint

    @property
    def times(self) -> tuple[float, float]:
        """How many seconds limits have held it, and when it was last sent; 0 where it never was."""
        return self._waited, self._sent_at

    def avoid(self, endpoints: tuple[Endpoint, ...]) -> None:
        """Try none of these."""
        self._tried = endpoints

    def _try(self, now: float, after: GatewayError | None = None) -> None:
        """Send the request to some endpoint; `after` is why the try before failed."""
        lane = self._lane
        assert lane is not None
        if lane.limits and not self._is_admitted(lane, now):
            return
        try:
            endpoint = self._choose(lane, now)
        except SequenceDisplacedError as why:
            self._replay_sequence(why)
            return
        except GatewayError as error:
            self._end_grant()
            self._fail(error)
            return
        if endpoint is None:
            self._end_grant()
            self._fail(after or GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy"))
            return
        self._endpoint = endpoint
        self._series = series = lane.series(endpoint)
        self._attempts += 1
        self._is_trying = True
        endpoint.in_flight += 1
        series.in_flight += 1
        if not endpoint.breaker.is_spotless:
            endpoint.breaker.sent(now)
        at = self._deadline(now)
        if at:
            self._slot = self._plane.wheel.add(self, at)
        try:
            self._ask(endpoint, now)
        except GatewayError as error:
            self._drop_try()
            self._leave(None)
            self._fail(error)

    def _choose(self, lane: Lane, now: float) -> Endpoint | None:
        """The endpoint of the next try; None where all are down.

        Raises: GatewayError(SEQUENCE_LOST); SequenceDisplacedError.
        """
        engine, session, tried = lane.engine, self._session, self._tried
        if self._first is not None and self._first not in tried:
            return self._first
        prompt = self._prompt() if engine.prefixes is not None else None
        if session is None or not (lane.keeps_place or (lane.keeps_session and type(session) is Sequence)):
            return engine.choose(session, now, tried, prompt)
        return self._plane.keeper.choose(engine, session, now, tried, prompt)

    def _deadline(self, now: float) -> float:
        """When this try is over for want of a reply; 0 where never."""
        assert self._lane is not None
        spec = self._lane.engine.spec
        at = self._started_at + self._waited + spec.timeout if spec.timeout else 0.0
        if spec.try_timeout and (not at or now + spec.try_timeout < at):
            at = now + spec.try_timeout
        if self._expires_at and (not at or self._expires_at < at):
            return self._expires_at
        return at

    def connect_failed(self, error: GatewayError) -> None:
        self._try_failed(error, was_sent=False)

    def expired(self) -> None:
        """The time until the first byte is over, for this try or for all."""
        self._slot = None
        assert self._lane is not None
        spec = self._lane.engine.spec
        is_final = bool(spec.timeout) and monotonic() - self._started_at - self._waited >= spec.timeout
        was_sent = self._was_sent
        says_nothing = self._waits_for_client()
        self._drop_try()
        limit = spec.timeout if is_final else spec.try_timeout
        error = GatewayError(ErrorKind.DEADLINE, f"the engine did not answer within {limit:g} s")
        self._try_failed(error, was_sent=was_sent, is_final=is_final, is_good=None if says_nothing else False)

    def _waits_for_client(self) -> bool:
        """Whether nobody can answer, since more of the request must come: that says nothing of the endpoint."""
        return False

    def _try_failed(
        self, error: GatewayError, *, was_sent: bool, is_final: bool = False, is_good: bool | None = False
    ) -> None:
        """A try ended without a whole reply: another one where that can do no harm, else the caller is told."""
        is_over = bool(self._status) or is_final
        tries_again = not is_over and self._may_try_again(was_sent)
        replays = not is_over and not tries_again and self._may_replay(error)
        self._leave(is_good, goes_on=tries_again or replays)
        if tries_again:
            self._try_again(error)
        elif replays:
            assert self._endpoint is not None and type(self._session) is Sequence
            self._drop_try()
            at = self._endpoint
            self._replay_sequence(SequenceDisplacedError(self._session, at.url, f"failed: {error.message}", at))
        else:
            self._fail(error)

    def _try_again(self, error: GatewayError) -> None:
        """One more try, which the budget has paid for."""
        assert self._lane is not None and self._endpoint is not None and self._series is not None
        self._series.retries += 1
        tried = (*self._tried, self._endpoint)
        # Where every endpoint has failed once, the next try may go to any of them again.
        self._tried = tried if len(tried) < len(self._lane.engine.endpoints) else ()
        self._drop_try()
        self._try(monotonic(), error)

    def _may_try_again(self, was_sent: bool) -> bool:
        assert self._lane is not None
        retry = self._lane.engine.spec.retry
        if self._attempts > retry.attempts or not self._can_be_sent_again():
            return False
        if was_sent and not self._is_idempotent(retry.idempotent):
            return False
        return self._lane.engine.budget.take(monotonic())

    def _drop_try(self) -> None:
        """Cancel the try under way, whatever its stage."""
        if self._grant is not None and self._grant.is_waiting:
            self._end_grant()
        if self._replay is not None and self._replay.cancel():
            self._end_grant()
        self._clear_deadline()
        self._abandon()

    def _clear_deadline(self) -> None:
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None

    def _leave(self, is_good: bool | None, *, goes_on: bool = False) -> None:
        """The try is over; `is_good` is what it says of the endpoint, None where it says nothing. The request is over,
        too, unless it `goes_on` elsewhere."""
        endpoint, series = self._endpoint, self._series
        assert endpoint is not None and series is not None and self._is_trying
        self._is_trying = False
        endpoint.in_flight -= 1
        series.in_flight -= 1
        if is_good and type(self._session) is Sequence and self._session.ends:
            self._plane.keeper.ended(self._session)
        if is_good is None:
            endpoint.breaker.abandoned()
        elif not is_good:
            endpoint.breaker.failed(monotonic())
        elif not endpoint.breaker.is_spotless:
            endpoint.breaker.succeeded()
        if self._grant is not None and not goes_on:
            self._end_grant()

    # Limits

    def expected_tokens(self) -> int:
        """How many tokens of a language model it may use; 0 where it asks none."""
        return 0

    def _used_tokens(self, expected: int) -> int:
        """How many it has used; `expected` were."""
        return 0

    @property
    @abstractmethod
    def _is_inference(self) -> bool:
        """Whether it counts: what only asks about a model does not."""

    @property
    def route(self) -> str:
        return self._lane.target.route if self._lane is not None else ""

    @property
    def session(self) -> str | None:
        return self._session

    def _is_admitted(self, lane: Lane, now: float) -> bool:
        """Whether the lane's limits let the request go. Where they do not, the caller is told; where nobody knows yet,
        it is tried again once somebody does."""
        grant = self._grant
        if grant is None:
            if not self._is_inference:
                return True
            try:
                grant = self._grant = self._plane.limiter.admit(lane.limits, self, now)
            except GatewayError as error:
                self._fail(error)
                return False
        return not grant.is_waiting

    def admitted(self, grant: Grant) -> None:
        """The limits let it go, after it has waited."""
        self._grant = grant
        now = monotonic()
        self._waited = now - self._started_at
        self._try(now)

    def refused(self, error: GatewayError) -> None:
        """The limits do not let it go."""
        self._grant = None
        self._fail(error)

    def go_on(self) -> None:
        """It is the rest of a request that was admitted and broke off: it has its place, and counts no second time."""
        assert self._lane is not None
        if self._lane.limits:
            self._grant = self._plane.limiter.go_on(self._lane.limits, self, monotonic())

    def _end_grant(self) -> None:
        grant, self._grant = self._grant, None
        if grant is not None:
            grant.end(self._used_tokens(grant.tokens) if grant.tokens is not None else 0)

    # What becomes of its sequence

    def sequence_moved(self, endpoint: Endpoint) -> None:
        """Its sequence is at this endpoint."""
        self._tried = ()
        self.start_at(endpoint)
        self._try(monotonic())

    def sequence_stuck(self, error: GatewayError) -> None:
        """Nobody can go on with its sequence."""
        self._end_grant()
        self._fail(error)

    # Telling what happened

    def _whereabouts(self) -> str:
        """Where in the fleet it happened; nothing where no rule had sent it anywhere."""
        if self._lane is None:
            return ""
        target = self._lane.target
        endpoint = f", endpoint {self._endpoint.url}" if self._endpoint is not None else ""
        return f" (route '{target.route}', engine '{target.engine}'{endpoint})"

    @property
    def _meter(self) -> Meter | None:
        """Who measures the request for an experiment."""
        meter = self._lane.meter if self._lane is not None else None
        return meter if meter is not None and self._is_inference else None

    def generated(self) -> Generated | None:
        """What has come of a generation; None where nobody reads it."""
        return None

    def _counters(self) -> RequestSeries:
        if self._series is not None:
            return self._series
        if self._lane is not None:
            return self._lane.series(None)
        return self._plane.metrics.unrouted

    def _stage(self) -> Stage:
        """What is waited for, for whoever asks for the requests under way."""
        if self._status:
            return Stage.ANSWERING
        if self._grant is not None and self._grant.is_waiting:
            return Stage.LIMITED
        if not self._is_trying:
            return Stage.READING
        return Stage.ASKING if self._was_sent else Stage.CONNECTING

    @property
    def url(self) -> str:
        """That of the endpoint that was tried last; empty where none was."""
        return self._endpoint.url if self._endpoint is not None else ""
