"""Who answers a request of a session on a route that keeps conversations."""

from __future__ import annotations

from collections.abc import Callable

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.request_body import decoded, told_json_bytes
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.conversation.handler import ConversationHandler
from gateway.dataplane.conversation.session_forwarding import held_by_engine
from gateway.dataplane.dispatch.deferred_handler import WaitingForWhole
from gateway.dataplane.translation.translation import Ask
from gateway.protocol.operations import OF_TEXT, LlmApi, Operation
from gateway.protocol.v2_facts import read_body_facts

_TEXT_INPUT = "text_input"

# Makes the handler of a request as if no conversation were kept.
Plain = Callable[[Request], Handler]


def is_of_conversation(request: Request, lane: Lane, session: str | None) -> bool:
    """Whether a request may be one of a conversation; of an infer only its body tells."""
    return lane.target.history is not None and bool(session) and request.plan.call.api in OF_TEXT


def talking(client: Client, request: Request, lane: Lane, session: str, ask: Ask, plain: Plain) -> Handler:
    """The handler of a request that `is_of_conversation`; `ask` asks the lane's engine for text."""
    history = lane.target.history
    assert history is not None
    if history.engine_holds_state or request.plan.call.api is LlmApi.INFER:
        return _ByBody(client, request, lane, session, ask, plain)
    return ConversationHandler(client, request, lane, session, history, ask)


class _ByBody(WaitingForWhole):
    """Holds the body until it is whole, and stands aside: for the engine that is told the session, for the talk where
    an infer is one of text, else for whoever answers any request."""

    __slots__ = ("_ask", "_lane", "_plain", "_session")

    def __init__(self, client: Client, request: Request, lane: Lane, session: str, ask: Ask, plain: Plain) -> None:
        super().__init__(client, request)
        self._lane = lane
        self._session = session
        self._ask = ask
        self._plain = plain

    def _answerer(self, body: bytes) -> tuple[Handler, bytes]:
        """Raises: GatewayError."""
        client, request, lane = self._client, self._request, self._lane
        history = lane.target.history
        assert history is not None
        plain_body = decoded(request, body, client.plane.settings.limits.max_body_bytes)
        if history.engine_holds_state:
            request, body = held_by_engine(request, plain_body, lane, self._session, history.session_field)
            return self._plain(request), body
        if _is_text(request, plain_body):
            return ConversationHandler(client, request, lane, self._session, history, self._ask), body
        return self._plain(request), body


def _is_text(request: Request, body: bytes) -> bool:
    """Whether an infer is one of text, as a language model behind V2 takes it."""
    facts = read_body_facts(Operation.INFER, body[: told_json_bytes(request.json_length, len(body))])
    return any(tensor.name == _TEXT_INPUT and tensor.datatype == "BYTES" for tensor in facts.inputs)
