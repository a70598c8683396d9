"""The affinity of sessions: to the arm that they had first, and to an endpoint.

A session's home is the endpoint that hashing gives it, the same for every worker and gateway. Where that one cannot
take it, it stays at another, and Redis stores its place. A Triton sequence has a place from its first request to its
last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import inf
from time import time
from typing import Protocol

from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.engine_load import Readiness
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import AnySession, Sequence, name_of
from gateway.routing.assignment import settled_token
from gateway.sessions.client_pin import ClientPin, Pinned, PinSeal
from gateway.sessions.sequence_log import SequenceLog
from gateway.sessions.session import Session
from gateway.sessions.session_cache import SessionCache
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.engine import Engine
from gateway.wire.http1.head import Field

# Clients are told the arm of their session again when what they have has lived for this part of its life.
_RENEWED_AFTER = 1 / 3


class PinCarrier(Protocol):
    """The head of a request, as its client shows what it has been told of its session's arms, and is told."""

    @property
    def pins(self) -> list[bytes]: ...

    def pin_fields(self, pin: ClientPin) -> list[Field]: ...


class SequenceDisplacedError(GatewayError):
    """A sequence cannot go on at its endpoint, or should not (`may_stay`); another one may replay its inputs.

    `place` is the endpoint's URL, empty where it is unknown, and `endpoint` itself None where it is gone.
    """

    def __init__(
        self, sequence: Sequence, place: str, what: str, at: Endpoint | None, *, may_stay: bool = False
    ) -> None:
        """`what` says why: "is down"."""
        super().__init__(ErrorKind.SEQUENCE_LOST, where_it_was(sequence, place, what))
        self.place = place
        self.endpoint = at
        self.may_stay = may_stay


class SessionAffinity:
    """Keeps sessions where they are, in one worker."""

    def __init__(self, book: SessionCache, inputs: SequenceLog) -> None:
        self.book = book
        self.inputs = inputs
        self.seal: PinSeal | None = None  # of what clients keep

    def lookup_cached(
        self, route_target: RouteTarget, session: AnySession, head: PinCarrier, *, sets_pin: bool = True
    ) -> RouteTarget | None:
        """The target of a session's request: its arm's; `route_target` is that of the rules. None where Redis must be
        queried first: `find`. `sets_pin`: the reply may tell the client its arm."""
        if isinstance(session, Sequence):
            name, replay = session.name, route_target.replay
            if replay is not None and session.step is None and not self.inputs.number_at_once(session, replay):
                return None
        else:
            name = session if type(session) is str else name_of(session)
        now = time()
        found = self.book.get(name, now, route_target.arm_experiment)
        return None if found is None else self._arm_target(route_target, found, now, session, head, sets_pin)

    def routed(self, selector: object, session: str) -> RouteTarget | None:
        """The cached target of a session's requests under this arm selector; None where `lookup_cached` must find it,
        and `route` store it."""
        now = time()
        known = self.book.get(session, now)
        if known is None or known.routed is None or known.routed[0] is not selector:
            return None
        route_target: RouteTarget = known.routed[1]
        if not route_target.sticky_endpoint:
            self.book.count(known, now)  # `choose` does not follow
        return route_target

    def route(self, selector: object, session: str, route_target: RouteTarget) -> None:
        """Cache the target of a session's requests, as long as its arms stay; not that of a guess."""
        known = self.book.peek(session, time())
        if not known.guessed:
            if route_target.pin_fields:
                route_target = route_target.for_bucket(route_target.bucket)
            known.routed = (selector, route_target)

    def find(
        self,
        route_target: RouteTarget,
        session: AnySession,
        found: Callable[[RouteTarget], None],
        head: PinCarrier,
        *,
        sets_pin: bool = True,
    ) -> None:
        """Look a session up in Redis; `found` gets its target in a later turn of the event loop."""
        name = name_of(session)

        def go_on() -> None:
            now = time()
            found(self._arm_target(route_target, self.book.peek(name, now), now, session, head, sets_pin))

        if route_target.replay is not None and isinstance(session, Sequence) and session.step is None:
            self.inputs.number(session, route_target.replay, go_on)
        else:
            split = route_target.split if route_target.arm_experiment is not None else None
            wait = split.spec.lookup_timeout if split is not None else 0.0
            self.book.find(name, lambda known: go_on(), route_target.arm_experiment, wait)

    def choose(
        self,
        engine: Engine,
        session: AnySession,
        now: float,
        tried: Collection[Endpoint] = (),
        prompt: bytes | memoryview | None = None,
        model: ModelName | None = None,
    ) -> Endpoint | None:
        """An endpoint for the next try of a session's request; None where all (not yet tried) are down.

        Raises: GatewayError(SEQUENCE_LOST) where a sequence's endpoint cannot go on with it; SequenceDisplacedError
        where another one may, since its inputs are kept.
        """
        moment = time()
        known = self.book.peek(name_of(session), moment)
        if isinstance(session, Sequence):
            endpoint = self._for_sequence(engine, session, known, now, tried, model)
        elif engine.spec.balance.traits.by_session:
            endpoint = self._for_session(engine, known, now, tried, model)
        else:
            endpoint = engine.choose(session, now, tried, prompt, model)
        if not tried:
            self.book.count(known, moment)
        return endpoint

    def ended(self, sequence: Sequence) -> None:
        self.book.end(sequence.name)
        if sequence.run:
            self.inputs.forget(sequence)

    def lost(self, engine: Engine, sequence: Sequence, place: str) -> None:
        """No endpoint can go on with a sequence, which was at this URL."""
        self.book.counts.sequences_lost[engine.name, place] += 1
        self.ended(sequence)

    async def move(
        self, route_target: RouteTarget, sequence: Sequence, left: SequenceDisplacedError, endpoint: Endpoint
    ) -> None:
        """Have a sequence go on at another endpoint, which has replayed its inputs; the others know when this returns.

        Raises: StoreError where that is uncertain.
        """
        assert route_target.replay is not None
        name = route_target.engine.name
        await self.inputs.place(sequence, name, endpoint.url, route_target.replay)
        self.book.place(self.book.peek(sequence.name, time()), name, endpoint.url)
        if not sequence.starts:  # else there was nothing to replay
            self.book.counts.sequences_moved[name, left.place, "drained" if left.may_stay else "lost"] += 1

    def _arm_target(
        self,
        route_target: RouteTarget,
        session: Session,
        now: float,
        named: AnySession,
        head: PinCarrier,
        sets_pin: bool,
    ) -> RouteTarget:
        """The target of the arm that a session has, if that may still take any; `named` is what its request says."""
        if not route_target.sticky_endpoint and not session.is_sequence:
            self.book.count(session, now)  # `choose` does not follow
        experiment = route_target.arm_experiment
        if experiment is None:
            return route_target
        assert route_target.split is not None and route_target.spec.arm is not None
        own = route_target.split.arm_tokens[route_target.spec.arm]
        if session.settled_until > now and session.settled_for == experiment:  # nearly always
            token = session.arms[experiment]
            if token == own:
                return route_target
            assigned = route_target.arms.get(token)
            if assigned is not None:
                return assigned.for_bucket(route_target.bucket)
        return self._settled(route_target, session, now, named, head, sets_pin, own)

    def _settled(
        self,
        route_target: RouteTarget,
        session: Session,
        now: float,
        named: AnySession,
        head: PinCarrier,
        sets_pin: bool,
        own: str,
    ) -> RouteTarget:
        """The same for a session of which something has to be done; `own` is what it keeps of the assigned arm.

        1. the arm that is known here; 2. that which the client shows; 3. the one that the rules assign, which is a
        guess where Redis has not said whether there is another.
        """
        experiment, split = route_target.arm_experiment, route_target.split
        assert experiment is not None and split is not None
        token = session.arms.get(experiment)
        seal = self.seal if split.spec.pin == "client" and not session.is_sequence else None
        is_guess = session.guessed is not None and experiment in session.guessed
        if token is not None and not is_guess and (settled := settled_token(token)) != token:
            arm_target = route_target if settled == own else route_target.arms.get(settled)
            if arm_target is not None:
                self._first_request(arm_target.for_bucket(route_target.bucket), session, experiment, token, now)
                token = settled
        if token is None or is_guess or (token != own and token not in route_target.arms):
            shown = self._shown(route_target, session, now, head, seal)
            if shown is not None:
                replaces = token not in (None, shown)
                self.book.keep_arm(session, experiment, shown, now, replaces=replaces)
                token, is_guess = shown, False
            elif not is_guess or token not in route_target.arms:
                is_guess = not session.is_read and not (isinstance(named, Sequence) and named.starts)
                chosen = route_target.guessed if is_guess else route_target
                if token is None and chosen.meter is not None:
                    chosen.meter.exposed()
                self.book.keep_arm(session, experiment, own, now, replaces=token is not None, is_guess=is_guess)
                token = own
        if token != own:
            route_target = route_target.arms[token].for_bucket(route_target.bucket)
        if is_guess:
            return route_target.guessed
        if seal is None:
            session.settled_for, session.settled_until = experiment, inf
            return route_target
        return self._with_pin(route_target, session, token, now, head, seal) if sets_pin else route_target

    def _shown(
        self, route_target: RouteTarget, session: Session, now: float, head: PinCarrier, seal: PinSeal | None
    ) -> str | None:
        """What a session keeps of its arm, as its client shows it; None where it shows nothing that is valid."""
        experiment = route_target.spec.experiment
        if seal is None or experiment is None or not (pins := head.pins):
            return None
        shown = seal.read(pins, experiment, session.name, route_target.arms, now, self.book.ttl_seconds)
        if shown is None:
            return None
        session.pinned = {**(session.pinned or {}), experiment: shown}
        return shown.token

    def _with_pin(
        self, route_target: RouteTarget, session: Session, token: str, now: float, head: PinCarrier, seal: PinSeal
    ) -> RouteTarget:
        """The same, whose reply tells the client its arm: once, and again before the client forgets it."""
        experiment = route_target.spec.experiment
        assert experiment is not None
        sent, life = (session.pinned or {}).get(experiment), self.book.ttl_seconds
        if sent is None or sent.token != token or now - sent.issued >= _RENEWED_AFTER * life:
            pin = seal.write(experiment, session.name, token, now, life)
            sent = Pinned(token, int(now))
            session.pinned = {**(session.pinned or {}), experiment: sent}
            route_target = route_target.pinned(head.pin_fields(pin))
        session.settled_for, session.settled_until = experiment, sent.issued + _RENEWED_AFTER * life
        return route_target

    def _first_request(
        self, route_target: RouteTarget, session: Session, experiment: str, reserved: str, now: float
    ) -> None:
        """A session whose arm an application was told before is exposed to it from now on; `route_target` is the arm's,
        `reserved` what the session has kept of it."""
        assert route_target.split is not None
        if route_target.meter is not None and route_target.split.is_reserved_now(reserved):
            route_target.meter.exposed()
        self.book.settle_arm(session, experiment, settled_token(reserved), now)

    def _for_session(
        self, engine: Engine, session: Session, now: float, tried: Collection[Endpoint], model: ModelName | None
    ) -> Endpoint | None:
        place = session.places.get(engine.name)
        hashed = self._hashed_endpoint(engine, session)
        if hashed is None:
            return None
        at = hashed if place is None else engine.endpoint(place)
        if model is not None and at not in engine.serving(model, now):
            # The session stays where it is with the models there; of this one, hashing alone gives the endpoint.
            able = engine.able_for_session(session.name, now, tried, model)
            return engine.by_session(able, session.name) if able else None
        if at is not None and not session.is_new and engine.is_able(at, now, tried):
            return at  # nearly always
        able = engine.able_for_session(session.name, now, tried, model)
        if not able:
            return None
        if place is not None and at in able:
            return at
        chosen = hashed if hashed in able else engine.by_session(able, session.name)
        is_moved = place is not None or not session.is_new
        if session.is_new and not tried:
            less_busy = self._less_busy(engine, able, chosen)
            if less_busy:
                chosen = engine.by_session(less_busy, session.name)
                self.book.counts.shed += 1
        # With levels, gateways in other zones hash otherwise: they are told
        if chosen is not hashed or place is not None or engine.levels is not None:
            own = chosen is hashed and engine.levels is None
            self.book.place(session, engine.name, None if own else chosen.url)
        left = place or hashed.url
        if is_moved and chosen.url != left:
            self.book.counts.moved[engine.name, left, _why_left(engine.endpoint(left))] += 1
        return chosen

    def _for_sequence(
        self,
        engine: Engine,
        sequence: Sequence,
        known: Session,
        now: float,
        tried: Collection[Endpoint],
        model: ModelName | None,
    ) -> Endpoint | None:
        if sequence.adrift and not sequence.starts:
            text = f"nobody knows where sequence {sequence.id} of model '{sequence.model}' is by now: {sequence.adrift}"
            raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, text)
        place = known.places.get(engine.name)
        at = engine.endpoint(place) if place is not None else None
        if place is not None and not sequence.starts:
            if at is None or at.condition is Readiness.DOWN or at in tried:
                what = "is gone" if at is None else "is down" if at.condition is Readiness.DOWN else "does not answer"
                if sequence.step is not None:
                    raise SequenceDisplacedError(sequence, place, what, at)
                self.lost(engine, sequence, place)
                text = where_it_was(sequence, place, what)
                raise GatewayError(ErrorKind.SEQUENCE_LOST, f"{text}: start it anew")
            if at.is_draining and sequence.step and not sequence.ends and at not in engine.able(now):
                raise SequenceDisplacedError(sequence, place, "is drained", at, may_stay=True)
            return at
        if sequence.step and not sequence.starts:
            raise SequenceDisplacedError(sequence, "", "nobody knows", None)
        able = engine.able_for_session(sequence.name, now, tried, model)
        if not able:
            return None
        chosen = at if at is not None and at in able else None
        if chosen is None:
            hashed = self._hashed_endpoint(engine, known)
            chosen = hashed if hashed is not None and hashed in able else engine.by_session(able, sequence.name)
        if sequence.starts and not sequence.ends and chosen.url != place:
            self.book.place(known, engine.name, chosen.url)
        return chosen

    def _hashed_endpoint(self, engine: Engine, session: Session) -> Endpoint | None:
        """The endpoint that hashing gives a session, of all that come first; remembered with the engine. None where it
        has none."""
        cached = session.hashed_endpoints.get(engine.name)
        if cached is not None and cached[0] is engine:
            known: Endpoint = cached[1]
            return known
        if not engine.endpoints:
            return None
        first = engine.endpoints if engine.levels is None else engine.levels.preferred
        hashed = engine.by_session(first, session.name)
        session.hashed_endpoints[engine.name] = (engine, hashed)
        return hashed

    @staticmethod
    def _less_busy(engine: Engine, able: Collection[Endpoint], chosen: Endpoint) -> list[Endpoint]:
        """The endpoints for a new session whose own is overloaded; none where it is not.

        Source: Mirrokni, Thorup and Zadimoghaddam, Consistent Hashing with Bounded Loads (2018).
        """
        spec = engine.spec.affinity
        least = min(endpoint.pressure for endpoint in able)
        bound = max(least + spec.imbalance, least * spec.imbalance_ratio)
        if chosen.pressure < bound:
            return []
        return [endpoint for endpoint in able if endpoint.pressure < bound]


def _why_left(endpoint: Endpoint | None) -> str:
    if endpoint is None:
        return "gone"
    return "drained" if endpoint.is_draining else "unavailable"


def where_it_was(sequence: Sequence, place: str, what: str) -> str:
    """The message for a sequence that cannot stay where it was; `what` is the reason."""
    text = f"sequence {sequence.id} of model '{sequence.model}' was at "
    return text + (f"endpoint {place}, which {what}" if place else f"an endpoint that {what}")
