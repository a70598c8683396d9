"""What the gateway itself asks an engine about a model: an endpoint that may serve it, and another one where that
refuses the model, as with the requests of clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from time import monotonic
from typing import TypeVar

from gateway.dataplane.attempts.model_refusal import lacks_model
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import http_status
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import HttpReply, UnaryReply, call_unary, fetch
from gateway.upstream.engine import Engine

# A request waits for the answer.
_TIMEOUT_SECONDS = 10.0

Answer = TypeVar("Answer", HttpReply, UnaryReply)


async def fetch_from(engine: Engine, path: str, method: str = "GET", model: ModelName | None = None) -> HttpReply:
    """What some endpoint of an engine, of those that serve the model, answers. Raises: GatewayError."""
    target = path.encode("ascii")

    async def query(endpoint: Endpoint) -> HttpReply:
        return await fetch(endpoint, method, target, b"", fields=engine.extra_fields, timeout=_timeout(engine))

    return await _query_in_turn(engine, model, query)


async def call_method(engine: Engine, path: str, message: bytes, model: ModelName) -> UnaryReply:
    """What some endpoint, of those that serve the model, answers to a unary call. Raises: GatewayError."""

    async def query(endpoint: Endpoint) -> UnaryReply:
        if endpoint.streams is None:
            raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy")
        return await call_unary(endpoint, path, message, fields=engine.extra_fields, timeout=_timeout(engine))

    return await _query_in_turn(engine, model, query)


async def _query_in_turn(
    engine: Engine, model: ModelName | None, query: Callable[[Endpoint], Awaitable[Answer]]
) -> Answer:
    tried: list[Endpoint] = []
    while True:
        endpoint = _choose(engine, model, tried)
        answer = await query(endpoint)
        now = monotonic()
        if model is None or not engine.learns_models or not _refuses(answer):
            return answer
        engine.learn_lack(model, endpoint, now)
        tried.append(endpoint)
        may_go_on = len(tried) <= engine.spec.retry.attempts and engine.choose(None, now, tried, model=model)
        if not may_go_on or not engine.moves.take(now):
            return answer


def _refuses(answer: HttpReply | UnaryReply) -> bool:
    if answer.is_good:
        return False
    if isinstance(answer, HttpReply):
        return lacks_model(answer.status, answer.body)
    return lacks_model(http_status(answer.status), answer.text.encode())


def _choose(engine: Engine, model: ModelName | None, tried: Collection[Endpoint]) -> Endpoint:
    now = monotonic()
    endpoint = engine.choose(None, now, tried, model=model)
    if endpoint is None:
        raise engine.no_endpoint(model, now)
    return endpoint


def _timeout(engine: Engine) -> float:
    return min(engine.spec.timeout or _TIMEOUT_SECONDS, _TIMEOUT_SECONDS)
