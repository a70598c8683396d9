"""Which way each message of a stream goes, and whether what comes back for it has its turn."""

from __future__ import annotations

from gateway.dataplane.bridging.metadata import is_decoupled
from gateway.dataplane.grpc.plan import CallPlan, Way
from gateway.dataplane.plan import no_route
from gateway.protocol.conversion.control import RpcError
from gateway.protocol.errors import GatewayError
from gateway.protocol.message_head import Names, facts_or_none
from gateway.routing.decision import Undecided
from gateway.wire.grpc import PREFIX_BYTES

Key = tuple[bytes, bytes]  # a model and its version, as the client names them


class Ways:
    """The ways of one stream: a model's messages all go the way that the first of them was sent, so that a sequence
    stays on its endpoint; only where the rules ask for what is in a message, each is decided by its own."""

    __slots__ = ("_decoupled", "_known", "_plan", "_sessions")

    def __init__(self, plan: CallPlan) -> None:
        self._plan = plan
        self._known: dict[Key, Way] = {}
        self._sessions: dict[Way, str | None] = {}
        self._decoupled: dict[Key, bool] = {}

    def __repr__(self) -> str:
        return f"<Ways {self._known}>"

    @property
    def first(self) -> Way | None:
        """The first that was decided."""
        return next(iter(self._sessions), None)

    def session(self, way: Way) -> str | None:
        return self._sessions.get(way)

    def keep(self, key: Key, way: Way, session: str | None) -> None:
        """All messages of this model go this way."""
        self._known[key] = way
        self._sessions.setdefault(way, session)

    def find(self, names: Names, data: bytes, plain: bytes | None) -> Way:
        """The way of a message: `data` with its prefix, `plain` without it and decompressed, if at hand.

        Raises: GatewayError(NO_ROUTE).
        """
        plan, key = self._plan, (names.model, names.version)
        known = self._known.get(key)
        if known is not None:
            return known
        decision = plan.decide(names, None)
        is_by_content = decision is Undecided.NEEDS_BODY
        if is_by_content:
            decision = plan.decide(names, facts_or_none(data[PREFIX_BYTES:] if plain is None else plain))
        if isinstance(decision, Undecided):
            raise no_route(plan.facts(names))
        way, session = decision
        if is_by_content:
            self._sessions.setdefault(way, session)
        else:
            self.keep(key, way, session)
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
        decision = self._plan.decide(names, None)
        if isinstance(decision, Undecided):
            # Nobody's message is refused in its turn; of those decided one by one nothing is promised.
            self._decoupled[key] = decision is Undecided.NEEDS_BODY
            return None
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
        self._decoupled[key] = found
