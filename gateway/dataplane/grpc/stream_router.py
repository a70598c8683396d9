"""The target of each message of a stream, and whether its response has its place in the order."""

from __future__ import annotations

import asyncio
from time import monotonic

from gateway.dataplane.attempts.fallback_counts import count_fallback, count_passed_over
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.fallbacks import takes_requests
from gateway.dataplane.context.prepared_head import undecided
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.model_description import is_decoupled
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.conversion.control_errors import RpcError
from gateway.protocol.errors import GatewayError
from gateway.protocol.fallback_reasons import DOWN, reasons_of_error
from gateway.protocol.infer_message_head import Names, facts_or_error
from gateway.protocol.sequence import AnySession, Sequence
from gateway.routing.decision import Undecided
from gateway.wire.grpc import PREFIX_BYTES

Key = tuple[bytes, bytes]  # a model and its version, as the client names them

_SEQUENCE = b"sequence_id"

# Of most streams, which need not know it. Never changed.
_NOTHING: dict[Key, bool] = {}


class StreamRouter:
    """The targets of one stream. A model's messages go where its first one went, so that a sequence stays on its
    endpoint; only where the rules read bodies or sessions is each message decided by itself."""

    def __init__(self, head: CallHead, plane: DataPlane) -> None:
        self._head = head
        self._plan = head.plan
        self._data_plane = plane
        self._affinity = plane.affinity
        self.reads_sessions = bool(head.plan.snapshot.session_field)
        self._by_model: dict[Key, CallTarget] = {}
        self._sessions: dict[CallTarget, AnySession | None] = {}
        self._decided: tuple[bytes, CallTarget, AnySession] | None = None  # of a message during its session's lookup
        self._decoupled = _NOTHING
        # The latest model whose messages go by what is in them, and the decision for one that `is_sticky` looked at:
        # a hostile client sends a million small ones.
        self._by_content: Key | None = None
        self._latest: tuple[bytes, tuple[CallTarget, AnySession | None] | Undecided] | None = None

    @property
    def first(self) -> CallTarget | None:
        return next(iter(self._sessions), None)

    @property
    def names(self) -> Names | None:
        """The names in the messages of a stream that go by their model."""
        key = next(iter(self._by_model), None)
        return Names(*key, b"", ()) if key is not None else None

    def session(self, target: CallTarget) -> AnySession | None:
        """The session that chooses a target's endpoint."""
        return self._sessions.get(target)

    def keep(self, key: Key, target: CallTarget, session: AnySession | None) -> None:
        """All messages of this model go to this target."""
        self._by_model[key] = target
        self._sessions.setdefault(target, session)

    def forget(self, target: CallTarget) -> None:
        """The next message of a model that goes there is decided again."""
        self._by_model = {key: known for key, known in self._by_model.items() if known is not target}

    def is_sticky(self, names: Names, plain: bytes) -> bool:
        """Whether a message goes where its session is, which `lookup_cached`, or else `look_up`, finds. Called where
        the rules read sessions."""
        if (names.model, names.version) in self._by_model:
            return False
        if self._decided is not None and self._decided[0] is plain:
            return True
        try:
            decision = self._decide(names, plain)
        except GatewayError:  # `find` raises it
            return False
        self._latest = plain, decision
        if isinstance(decision, Undecided) or decision[1] is None or not decision[0].route_target.is_sticky:
            return False
        if decision[0].route_target.replay is not None:  # each is a request by itself: see `RestBackendStream`
            return False
        self._decided, self._latest = (plain, self._of_all_units(decision[0]), decision[1]), None
        return True

    def lookup_cached(self) -> bool:
        """Whether the session is cached in this process."""
        assert self._decided is not None
        plain, target, session = self._decided
        route_target = self._affinity.lookup_cached(target.route_target, session, self._head, sets_pin=False)
        if route_target is not None:
            self._decided = plain, self._plan.target(route_target), session
        return route_target is not None

    async def look_up(self) -> None:
        assert self._decided is not None
        plain, target, session = self._decided
        lookup: asyncio.Future[RouteTarget] = asyncio.get_running_loop().create_future()
        self._affinity.find(
            target.route_target,
            session,
            lambda route_target: None if lookup.done() else lookup.set_result(route_target),
            self._head,
            sets_pin=False,  # the replies' fields are those of all sessions of the stream
        )
        self._decided = plain, self._plan.target(await lookup), session

    def find(self, names: Names, data: bytes, plain: bytes | None) -> CallTarget:
        """The target of a message: `data` has its prefix, `plain` is without it and decompressed, None if not at hand.

        Raises: GatewayError(NO_ROUTE, SEQUENCE_LOST, NO_HEALTHY_ENDPOINT).
        """
        key = (names.model, names.version)
        target = self._by_model.get(key)
        if target is not None:
            return target
        if self._decided is not None and self._decided[0] is plain:
            _, target, session = self._decided
            self._decided = None
            return self._target_of_session(target, session, names)
        latest, self._latest = self._latest, None
        decision = latest[1] if latest is not None and latest[0] is plain else self._decide(names, plain, data)
        is_by_content = self._by_content == key
        if isinstance(decision, Undecided):
            raise undecided(decision, self._plan.facts(names))
        target, chosen_by = decision
        if target.route_target.fallbacks is not None:
            target = self._with_able_engine(target, chosen_by, data if plain is None else plain, names)
        if is_by_content:
            target = self._narrowed(self._of_all_units(target), names)
            self._sessions.setdefault(target, chosen_by)
        else:
            target = self._narrowed(target, names)
            self.keep(key, target, chosen_by)
        return target

    def _with_able_engine(
        self, target: CallTarget, session: AnySession | None, message: bytes, names: Names
    ) -> CallTarget:
        """The target, or that of its fallback where no endpoint of its engine takes requests. A sequence stays."""
        left, now, head = target.route_target, monotonic(), self._head
        if isinstance(session, Sequence) or _SEQUENCE in message:
            return target
        if takes_requests(left.engine, now, _at_engine(target, names)):
            return target
        assert left.fallbacks is not None
        found = left.fallbacks.find(DOWN, now, was_admitted=False)
        if found is None or not takes_requests(found.engine, now):
            return target
        rated_id = self._plan.rater + (head.id or b"")
        count_passed_over(self._data_plane, left, rated_id, len(message), is_inference=True)
        count_fallback(self._data_plane.metrics, left, found, rated_id, 0, is_inference=True)
        return self._plan.target(found)

    @staticmethod
    def _narrowed(target: CallTarget, names: Names) -> CallTarget:
        """The target among the endpoints that serve a message's model."""
        engine = target.route_target.engine
        if engine.by_model is None:
            return target
        endpoints = engine.serving(_at_engine(target, names), monotonic())
        return target.among(endpoints) if endpoints else target

    def fallback(self, target: CallTarget, error: GatewayError, messages: list[bytes]) -> CallTarget | None:
        """The target of a fallback, where the engine has failed to take these messages; all others go there, too. None
        where there is none."""
        left, session = target.route_target, self._sessions.get(target)
        if left.fallbacks is None or isinstance(session, Sequence) or any(_SEQUENCE in data for data in messages):
            return None
        reasons = reasons_of_error(error.kind, is_idempotent=False)
        found = left.fallbacks.find(reasons, monotonic(), was_admitted=True) if reasons else None
        if found is None:
            return None
        rated_id = self._plan.rater + (self._head.id or b"")
        count_fallback(self._data_plane.metrics, left, found, rated_id, 0, is_inference=True)
        chosen = self._plan.target(found)
        self._sessions[chosen] = self._sessions.pop(target, None)
        self._by_model.update({key: chosen for key, known in self._by_model.items() if known is target})
        return chosen

    def _of_all_units(self, target: CallTarget) -> CallTarget:
        """One target for messages of all units of an experiment, since each target is a stream to an engine."""
        return self._plan.target(target.route_target.origin)

    def _decide(
        self, names: Names, plain: bytes | None, data: bytes = b""
    ) -> tuple[CallTarget, AnySession | None] | Undecided:
        key = (names.model, names.version)
        if self._by_content != key:
            decision = self._plan.decide(names, None, self._head)
            if decision is not Undecided.NEEDS_BODY:
                return decision
            self._by_content = key
        facts = facts_or_error(data[PREFIX_BYTES:] if plain is None else plain)
        return self._plan.decide(names, facts, self._head)

    def _target_of_session(self, target: CallTarget, session: AnySession, names: Names) -> CallTarget:
        """The target at the endpoint where a session is."""
        engine, now = target.route_target.engine, monotonic()
        model = _at_engine(target, names) if engine.by_model is not None else None
        if isinstance(session, Sequence) or target.route_target.sticky_endpoint:
            endpoint = self._affinity.choose(engine, session, now, model=model)
        else:
            endpoint = engine.choose(session, now, model=model)
        if endpoint is None:
            raise engine.no_endpoint(model, now)
        if isinstance(session, Sequence) and session.ends:
            self._affinity.ended(session)
        target = target.at(endpoint)
        self._sessions.setdefault(target, session)
        return target

    # Which responses have their turn

    def is_decoupled(self, key: Key) -> bool | None:
        """Whether a model has any number of responses to a request; None where that is unknown."""
        return self._decoupled.get(key)

    def target_to_query(self, names: Names) -> CallTarget | None:
        """The target to query for whether a model is decoupled; None where no query is needed."""
        key = (names.model, names.version)
        target = self._by_model.get(key)
        if target is not None:
            return target
        decision = self._plan.decide(names, None, self._head)
        if decision is Undecided.NEEDS_BODY and self._decided is not None:
            return self._decided[1]  # the rules read nothing but its session in the body
        if isinstance(decision, Undecided):
            # Messages without a route are refused in their turn; for those decided one by one no order is promised.
            self._know(key, decision is Undecided.NEEDS_BODY)
            return None
        if decision[0].route_target.is_sticky:
            return decision[0]
        target = self._narrowed(decision[0], names)
        self.keep(key, target, decision[1])
        return target

    async def query(self, key: Key, target: CallTarget) -> None:
        try:
            decoupled = await is_decoupled(
                target.route_target, key[0].decode("utf-8", "replace"), key[1].decode("utf-8", "replace")
            )
        except RpcError:
            decoupled = False  # it refuses the model, and will refuse the request once
        except GatewayError:
            decoupled = True  # so that no response waits for one that may not come
        self._know(key, decoupled)

    def _know(self, key: Key, decoupled: bool) -> None:
        if self._decoupled is _NOTHING:
            self._decoupled = {}
        self._decoupled[key] = decoupled


def _at_engine(target: CallTarget, names: Names) -> ModelName:
    """A message's model by its name at the engine."""
    name, version = names.of_model
    return target.route_target.spec.model or name, version
