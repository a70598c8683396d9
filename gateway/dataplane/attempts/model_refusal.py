"""Replies by which an endpoint says that it lacks the requested model, so that another one may get the request.

Sources: Triton's model_repository_manager.cc ("Request for unknown model"), vLLM's serving.py (404, "The model `m` does
not exist."), Ollama's routes.go, OpenAI's error codes (`model_not_found`), MLServer's and KServe's errors, TF Serving's
"Servable not found for request", TorchServe's ModelNotFoundException.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import Any

from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.net.http1_client import Http1ClientConnection, ReplyReceiver
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.sequence import Sequence
from gateway.wire.http1.head import ResponseHead

# A longer reply is no such refusal.
_MAX_BYTES = 16 * 1024

# What Triton says stands at the beginning: the rest of a refusal may repeat what the client wrote.
_OF_TRITON = re.compile(rb'\s*(?:\{\s*"error"\s*:\s*")?Request for unknown model')
_NOT_FOUND = re.compile(
    rb"unknown model|model_not_found|servable not found|model not found"
    rb"|\bmodel\b[^\n]{1,400}?(?:does not exist|not found|no available version|not ready|not loaded)",
    re.IGNORECASE,
)
_PATTERNS = {400: _OF_TRITON.match, 404: _NOT_FOUND.search, 503: _OF_TRITON.match}


def lacks_model(status: int, text: bytes) -> bool:
    """Whether a reply of this HTTP status, or that of its gRPC status, says that the server lacks the model."""
    matches = _PATTERNS.get(status)
    return matches is not None and matches(text[:_MAX_BYTES]) is not None


def is_turned_away(attempts: UpstreamAttempts[Any], status: int, text: bytes) -> bool:
    """Whether another endpoint gets the request, since this whole reply says that its endpoint lacks the model."""
    engine, model, endpoint, now = attempts.route_target.engine, attempts.model(), attempts.endpoint, monotonic()
    if model is None or endpoint is None or not engine.learns_models or not lacks_model(status, text):
        return False
    if not engine.learn_lack(model, endpoint, now):
        return False
    if endpoint.models is not None and endpoint.models.serves(model):
        attempts.lists_are_old([endpoint])
    if type(attempts.session) is Sequence:
        return False
    error = GatewayError(ErrorKind.NOT_FOUND, f"endpoint {endpoint.url} lacks model '{model[0]}'")
    return attempts.try_elsewhere(error, is_good=True, was_sent=False, budget=engine.moves)


def hold_refusal(
    attempts: UpstreamAttempts[Http1ClientConnection], receiver: ReplyReceiver, head: ResponseHead, data: bytes
) -> bool:
    """Whether a reply that may be such a refusal is held back: once it is whole, `receiver` gets all of it at once."""
    attempt = attempts.attempt
    if attempt is None or attempt.sent_on is None or head.status not in _PATTERNS or head.ends_at_close:
        return False
    if max(head.length or 0, len(data)) > _MAX_BYTES or not attempts.route_target.engine.learns_models:
        return False
    attempt.sent_on.receiver = _HeldRefusal(attempt.sent_on, receiver, head, data)
    return True


class _HeldRefusal:
    """Receives the rest of a reply in place of its `receiver`, until it is whole or too long for a refusal."""

    __slots__ = ("_connection", "_data", "_head", "_receiver")

    def __init__(
        self, connection: Http1ClientConnection, receiver: ReplyReceiver, head: ResponseHead, data: bytes
    ) -> None:
        self._connection = connection
        self._receiver = receiver
        self._head = head
        self._data = data

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        raise AssertionError("the reply has started")

    def reply_continued(self, data: bytes, ended: bool) -> None:
        self._data += data
        if ended:
            self._receiver.reply_started(self._head, self._data, True)
        elif len(self._data) > _MAX_BYTES:
            self._connection.receiver = self._receiver
            self._receiver.reply_started(self._head, self._data, False)

    def reply_failed(self, error: GatewayError) -> None:
        self._receiver.reply_failed(error)

    def sending_paused(self) -> None:
        self._receiver.sending_paused()

    def sending_resumed(self) -> None:
        self._receiver.sending_resumed()
