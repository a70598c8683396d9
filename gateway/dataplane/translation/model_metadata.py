"""The metadata and configuration of engines' models, queried for conversions and cached for a moment."""

from __future__ import annotations

from time import monotonic

from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.model_description import TtlCache, describe
from gateway.protocol.conversion.control import response_of_json, rpc_response
from gateway.protocol.conversion.control_errors import RpcError
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.operations import model_path
from gateway.protocol.protobuf import message, parse
from gateway.upstream.endpoint_client import call_unary, fetch
from gateway.upstream.engine import Engine

# A request waits for the answer.
_TIMEOUT_SECONDS = 10.0

_cache = TtlCache[bytes]()


async def query_metadata(lane: Lane, model: str, version: str) -> bytes:
    """A serialised ModelMetadataResponse; `model` as the client names it.

    Raises: RpcError where the engine refuses, GatewayError where no answer comes.
    """
    return await _cached("ModelMetadata", lane, model, version)


async def query_config(lane: Lane, model: str, version: str) -> bytes:
    """A serialised ModelConfigResponse; `model` as the client names it.

    Raises: as `query_metadata`.
    """
    return await _cached("ModelConfig", lane, model, version)


async def is_decoupled(lane: Lane, model: str, version: str) -> bool:
    """Whether a request may have any number of responses. MLServer has no such flag, and answers each REST
    request once.

    Raises: as `query_metadata`.
    """
    if not lane.engine.spec.protocol.traits.reports_decoupled:
        return False
    answer = await query_config(lane, model, version)
    try:
        config = parse("inference.ModelConfigResponse", answer).config
    except ValueError as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the model's config cannot be read: {error}") from error
    return bool(config.model_transaction_policy.decoupled)


async def _cached(rpc: str, lane: Lane, model: str, version: str) -> bytes:
    cached = _cache.get(lane, rpc, model, version)
    if cached is not None:
        return cached
    answer = await _query(rpc, lane, lane.target.model or model, version)
    _cache.put(lane, answer, rpc, model, version)
    return answer


async def _query(rpc: str, lane: Lane, model: str, version: str) -> bytes:
    engine = lane.engine
    if not engine.spec.protocol.is_v2:
        description = await describe(lane, model, version)
        return response_of_json(rpc, description.config if rpc == "ModelConfig" else description.metadata)
    endpoint = engine.choose(None, monotonic())
    if endpoint is None:
        raise GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy")
    if endpoint.streams is not None:
        request = message(f"inference.{rpc}Request")(name=model, version=version).SerializeToString()
        answered = await call_unary(
            endpoint,
            RPCS[rpc].path,
            request,
            fields=engine.extra_fields,
            timeout=_timeout(engine),
        )
        if not answered.is_good:
            raise RpcError(answered.status, answered.text)
        return answered.message
    path = model_path(model, version) + ("/config" if rpc == "ModelConfig" else "")
    timeout = _timeout(engine)
    fetched = await fetch(endpoint, "GET", path.encode("ascii"), b"", fields=engine.extra_fields, timeout=timeout)
    return rpc_response(rpc, fetched.status, fetched.body)


def _timeout(engine: Engine) -> float:
    return min(engine.spec.timeout or _TIMEOUT_SECONDS, _TIMEOUT_SECONDS)
