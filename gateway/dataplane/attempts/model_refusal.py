"""Replies by which an endpoint says that it lacks the requested model, so that another one may get the request.

Sources: Triton's model_repository_manager.cc ("Request for unknown model"), vLLM's serving.py (404, "The model `m` does
not exist."), Ollama's routes.go, OpenAI's error codes (`model_not_found`), MLServer's and KServe's errors, TF Serving's
"Servable not found for request" and, for a model's state, "Could not find any versions of model", TorchServe's
ModelNotFoundException.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
# A 404 is about the model where its text begins so: further on it may repeat what the client wrote.
_BEGINNING = re.compile(
    rb'(?:\A|"(?:message|error|detail|msg)" ?: ?")\s{0,8}(?:the |requested )?'
    rb"(?:(request for unknown model|unknown model|servable not found"
    rb"|could not find (?:any versions|version \d{1,20}) of model)|model\b)"
    rb'|"(?:code|type)" ?: ?"(model_not_found)"',
    re.IGNORECASE,
)
_NOT_FOUND = re.compile(rb"does not exist|not found|no available version|not ready|not loaded", re.IGNORECASE)
_MAX_BETWEEN = 400


def _is_not_found(text: bytes) -> bool:
    for found in _BEGINNING.finditer(text):
        if found.lastindex or _NOT_FOUND.search(text, found.end(), found.end() + _MAX_BETWEEN):
            return True
    return False


_TESTS: dict[int, Callable[[bytes], object]] = {400: _OF_TRITON.match, 404: _is_not_found, 503: _OF_TRITON.match}


def lacks_model(status: int, text: bytes) -> bool:
    """Whether a reply of this HTTP status, or that of its gRPC status, says that the server lacks the model."""
    test = _TESTS.get(status)
    return test is not None and len(text) <= _MAX_BYTES and bool(test(text))


def is_turned_away(attempts: UpstreamAttempts[Any], status: int, text: bytes) -> bool:
    """Whether another endpoint gets the request, since this whole reply says that its endpoint lacks the model."""
    model, endpoint = attempts.model(), attempts.endpoint
    if not learn_refusal(attempts, status, text) or type(attempts.session) is Sequence:
        return False
    assert model is not None and endpoint is not None
    error = GatewayError(ErrorKind.NOT_FOUND, f"endpoint {endpoint.url} lacks model '{model[0]}'")
    budget = attempts.route_target.engine.moves
    return attempts.try_elsewhere(error, is_good=True, was_sent=False, budget=budget)


def learn_refusal(attempts: UpstreamAttempts[Any], status: int, text: bytes) -> bool:
    """Whether this whole reply says that its endpoint lacks the model, which nobody knew."""
    engine, model, endpoint = attempts.route_target.engine, attempts.model(), attempts.endpoint
    if model is None or endpoint is None or not engine.learns_models or not lacks_model(status, text):
        return False
    now = monotonic()
    if not engine.learn_lack(model, endpoint, now):
        return False
    if endpoint.models is not None and endpoint.models.serves(model) and engine.is_due("lists", now):
        attempts.lists_are_old([endpoint])
    return True


def hold_refusal(
    attempts: UpstreamAttempts[Http1ClientConnection], receiver: ReplyReceiver, head: ResponseHead, data: bytes
) -> bool:
    """Whether a reply that may be such a refusal is held back: once it is whole, `receiver` gets all of it at once."""
    attempt = attempts.attempt
    if attempt is None or attempt.sent_on is None or head.status not in _TESTS or head.ends_at_close:
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
