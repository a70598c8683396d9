"""Which way each message of a stream goes, and whether what comes back for it has its turn."""

from __future__ import annotations

import asyncio
from time import monotonic

from gateway.dataplane.context.call_head import CallHead, Way
from gateway.dataplane.context.prepared_head import no_route
from gateway.dataplane.context.session_affinity import SessionAffinity
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.protocol_bridge.model_metadata import is_decoupled
from gateway.protocol.conversion.control import RpcError
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.infer_message_head import Names, facts_or_none
from gateway.protocol.sequence import Sequence
from gateway.routing.decision import Undecided
from gateway.wire.grpc import PREFIX_BYTES

Key = tuple[bytes, bytes]  # a model and its version, as the client names them


# What is known of most streams' models: nobody asks. Never added to.
_NOTHING: dict[Key, bool] = {}


class StreamRouter:
    """The ways of one stream: a model's messages all go the way that the first of them was sent, so that a sequence
    stays on its endpoint; only where the rules ask for what is in a message, or for its session, each is decided by its
    own, and goes to its session's endpoint."""

    __slots__ = ("_decided", "_decoupled", "_head", "_keeper", "_known", "_plan", "_sessions", "asks_sessions")

    def __init__(self, head: CallHead, keeper: SessionAffinity) -> None:
        self._head = head
        self._plan = head.plan
        self._keeper = keeper
        self.asks_sessions = bool(head.plan.snapshot.session_field)
        self._known: dict[Key, Way] = {}
        self._sessions: dict[Way, str | None] = {}
        self._decided: tuple[bytes, Way, str] | None = None  # of a message whose session is being looked up
        self._decoupled = _NOTHING

    def __repr__(self) -> str:
        return f"<StreamRouter {self._known}>"

    @property
    def first(self) -> Way | None:
        """The first that was decided."""
        return next(iter(self._sessions), None)

    @property
    def first_model(self) -> str:
        """The model of a stream whose messages go by it."""
        return next(iter(self._known), (b"", b""))[0].decode("utf-8", "replace")

    @property
    def names(self) -> Names | None:
        """Whom the messages of such a stream name."""
        key = next(iter(self._known), None)
        return Names(*key, b"", ()) if key is not None else None

    def session(self, way: Way) -> str | None:
        """Whose session a way's endpoint is chosen by."""
        return self._sessions.get(way)

    def keep(self, key: Key, way: Way, session: str | None) -> None:
        """All messages of this model go this way."""
        self._known[key] = way
        self._sessions.setdefault(way, session)

    def keeps_session(self, names: Names, plain: bytes) -> bool:
        """Whether a message goes where its session is: then `recalled`, or else `recall`, finds the place. Asked where
        rules ask for sessions."""
        if (names.model, names.version) in self._known:
            return False
        if self._decided is not None and self._decided[0] is plain:
            return True
        try:
            decision = self._decide(names, plain)
        except GatewayError:  # `find` tells it
            return False
        if isinstance(decision, Undecided) or decision[1] is None or not decision[0].lane.keeps_session:
            return False
        if decision[0].lane.replay is not None:  # each is a request by itself: see `RestLeg`
            return False
        self._decided = plain, self._of_all_units(decision[0]), decision[1]
        return True

    def recalled(self) -> bool:
        """Whether the session is known without asking Redis."""
        assert self._decided is not None
        plain, way, session = self._decided
        lane = self._keeper.recall(way.lane, session)
        if lane is not None:
            self._decided = plain, self._plan.way(lane), session
        return lane is not None

    async def recall(self) -> None:
        """Ask Redis for the session."""
        assert self._decided is not None
        plain, way, session = self._decided
        found: asyncio.Future[Lane] = asyncio.get_running_loop().create_future()
        self._keeper.find(way.lane, session, lambda lane: None if found.done() else found.set_result(lane))
        self._decided = plain, self._plan.way(await found), session

    def find(self, names: Names, data: bytes, plain: bytes | None) -> Way:
        """The way of a message: `data` with its prefix, `plain` without it and decompressed, if at hand.

        Raises: GatewayError(NO_ROUTE, SEQUENCE_LOST, NO_HEALTHY_ENDPOINT).
        """
        key = (names.model, names.version)
        known = self._known.get(key)
        if known is not None:
            return known
        if self._decided is not None and self._decided[0] is plain:
            _, way, session = self._decided
            self._decided = None
            return self._way_of_session(way, session)
        decision = self._plan.decide(names, None, self._head)
        is_by_content = decision is Undecided.NEEDS_BODY
        if is_by_content:
            decision = self._decide(names, data[PREFIX_BYTES:] if plain is None else plain)
        if isinstance(decision, Undecided):
            raise no_route(self._plan.facts(names))
        way, told = decision
        if is_by_content:
            way = self._of_all_units(way)
            self._sessions.setdefault(way, told)
        else:
            self.keep(key, way, told)
        return way

    def _of_all_units(self, way: Way) -> Way:
        """One way of a target, however many units its messages are of: each is a stream to an engine."""
        return self._plan.way(way.lane.base)

    def _decide(self, names: Names, plain: bytes) -> tuple[Way, str | None] | Undecided:
        decision = self._plan.decide(names, None, self._head)
        if decision is Undecided.NEEDS_BODY:
            return self._plan.decide(names, facts_or_none(plain), self._head)
        return decision

    def _way_of_session(self, way: Way, session: str) -> Way:
        """The way to the endpoint where a session is."""
        engine = way.lane.engine
        if way.lane.keeps_place or isinstance(session, Sequence):
            endpoint = self._keeper.choose(engine, session, monotonic())
        else:
            endpoint = engine.choose(session, monotonic())
        if endpoint is None:
            raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy")
        if isinstance(session, Sequence) and session.ends:
            self._keeper.ended(session)
        way = way.at(endpoint)
        self._sessions.setdefault(way, session)
        return way

    # Whose responses have their turn

    def is_decoupled(self, key: Key) -> bool | None:
        """Whether a model answers as it likes; None where nobody has said so far."""
        return self._decoupled.get(key)

    def way_to_ask(self, names: Names) -> Way | None:
        """The way on which to ask whether a model is decoupled; None where that is clear without asking."""
        key = (names.model, names.version)
        way = self._known.get(key)
        if way is not None:
            return way
        decision = self._plan.decide(names, None, self._head)
        if decision is Undecided.NEEDS_BODY and self._decided is not None:
            return self._decided[1]  # its session alone was asked of the body
        if isinstance(decision, Undecided):
            # Nobody's message is refused in its turn; of those decided one by one nothing is promised.
            self._know(key, decision is Undecided.NEEDS_BODY)
            return None
        if not decision[0].lane.keeps_session:
            self.keep(key, *decision)
        return decision[0]

    async def ask(self, key: Key, way: Way) -> None:
        """Ask the engine whether the model is decoupled."""
        try:
            found = await is_decoupled(way.lane, key[0].decode("utf-8", "replace"), key[1].decode("utf-8", "replace"))
        except RpcError:
            found = False  # it refuses the model, and so will it the request: once
        except GatewayError:
            found = True  # nobody must wait for an answer that is not promised
        self._know(key, found)

    def _know(self, key: Key, decoupled: bool) -> None:
        if self._decoupled is _NOTHING:
            self._decoupled = {}
        self._decoupled[key] = decoupled
