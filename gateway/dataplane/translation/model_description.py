"""The metadata and configuration of engines' models, queried and cached for a moment: of engines that do not speak V2,
as V2 has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

import orjson

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import LocalHandler
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.model_query import call_method, fetch_from
from gateway.protocol.advertised_models import ModelName, read_model_list
from gateway.protocol.conversion.control import response_of_json, rpc_response
from gateway.protocol.conversion.control_errors import RpcError
from gateway.protocol.conversion.errors import read_error
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.grpc_status import http_status
from gateway.protocol.llm.embeddings import embeddings_metadata
from gateway.protocol.llm.infer_text import openai_config, openai_metadata
from gateway.protocol.operations import LlmApi, Operation, model_path
from gateway.protocol.protobuf import message, parse
from gateway.protocol.remembered_names import MAX_LENGTH
from gateway.protocol.tfserving.model_info import (
    ModelPath,
    Signatures,
    config_of,
    metadata_of,
    read_signatures,
    read_signatures_message,
    read_versions,
    read_versions_message,
    ready_of,
    target,
)
from gateway.protocol.tfserving.rpcs import metadata_call, status_call
from gateway.protocol.torchserve.translator import ModelTranslator
from gateway.protocol.torchserve.translator import metadata_of as torchserve_metadata
from gateway.protocol.translator import Reply, V2Request
from gateway.upstream.engine import Engine

# A model that is loaded anew with other tensors is known by then.
_REMEMBERED_SECONDS = 10.0
_MAX_REMEMBERED = 1024

Value = TypeVar("Value")


class TtlCache(Generic[Value]):
    """What the engines of targets said, by what they were asked about; forgotten all at once where it is too much."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, tuple[str, ...]], tuple[float, RouteTarget, Value]] = {}

    def get(self, route_target: RouteTarget, *key: str) -> Value | None:
        route_target = route_target.origin
        known = self._known.get((id(route_target), key))
        # Another target may have the identity of one that is gone.
        if known is None or known[1] is not route_target or monotonic() >= known[0]:
            return None
        return known[2]

    def put(self, route_target: RouteTarget, value: Value, *key: str) -> None:
        if max(map(len, key)) > MAX_LENGTH:
            return
        if len(self._known) >= _MAX_REMEMBERED:
            self._known.clear()
        route_target = route_target.origin
        self._known[(id(route_target), key)] = (monotonic() + _REMEMBERED_SECONDS, route_target, value)


@dataclass(frozen=True, slots=True)
class Description:
    """A model's V2 metadata and config, and whether it is ready."""

    metadata: dict[str, Any]
    config: dict[str, Any]
    is_ready: bool
    signatures: Signatures | None = None  # of a TF Serving model


_known = TtlCache[Description]()


async def describe(route_target: RouteTarget, model: str, version: str) -> Description:
    """The description of a model by its name at the engine. Raises: GatewayError (NOT_FOUND where the engine has no
    such model, UPSTREAM_... where no answer comes)."""
    description = _known.get(route_target, model, version)
    if description is None:
        description = await DESCRIBERS[route_target.engine.spec.protocol](route_target.engine, model, version)
        _known.put(route_target, description, model, version)
    return description


async def _openai(engine: Engine, model: str, version: str) -> Description:
    """An engine that lists its models must list this one; some list none."""
    name = model, version
    fetched = await fetch_from(engine, f"{engine.spec.base_path}/models", model=name)
    listed = read_model_list(fetched.body)
    if listed is not None and listed.names and not listed.serves(name):
        raise GatewayError(ErrorKind.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
    embeds = engine.spec.dialects == (LlmApi.EMBEDDINGS.value,)
    metadata = embeddings_metadata(model) if embeds else openai_metadata(model)
    config = _config(metadata) if embeds else openai_config(model)
    return Description(metadata, config, is_ready=fetched.is_good or fetched.status == 404)


async def _call_service(engine: Engine, path: str, message: bytes, model: ModelName) -> bytes:
    """What some endpoint of an engine answers to a call of its own service. Raises: GatewayError."""
    answered = await call_method(engine, path, message, model)
    if not answered.is_good:
        kind = ErrorKind.NOT_FOUND if http_status(answered.status) == 404 else ErrorKind.UPSTREAM_PROTOCOL
        raise GatewayError(kind, answered.text)
    return answered.message


async def _tfserving_by_grpc(engine: Engine, path_: ModelPath, name: ModelName) -> Description:
    calls = [metadata_call(path_), status_call(path_)]
    content, status = await asyncio.gather(
        *[_call_service(engine, call.path.decode("ascii"), call.message, name) for call in calls]
    )
    model = name[0]
    signatures, versions = read_signatures_message(content), read_versions_message(status)
    metadata = metadata_of(model, signatures, versions)
    return Description(metadata, config_of(model, signatures), bool(versions), signatures)


async def _tfserving(engine: Engine, model: str, version: str) -> Description:
    path_, name = target(model, version), (model, version)
    if not engine.speaks_rest:
        return await _tfserving_by_grpc(engine, path_, name)
    paths = path_.metadata_path, path_.path
    content, status = await asyncio.gather(*[fetch_from(engine, each, model=name) for each in paths])
    if content.status == 404:
        raise GatewayError(ErrorKind.NOT_FOUND, read_error(content.body)[0])
    if not content.is_good:
        what = f"the engine answered with status {content.status}: {read_error(content.body)[0]}"
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, what)
    signatures = read_signatures(content.body)
    versions = read_versions(status.body) if status.is_good else None
    metadata = metadata_of(model, signatures, versions)
    return Description(metadata, config_of(model, signatures), ready_of(status.status, status.body), signatures)


async def _torchserve(engine: Engine, model: str, version: str) -> Description:
    """Its inference port tells that a model is there, and nothing of its tensors."""
    if not engine.speaks_rest:  # its gRPC tells nothing of a model
        metadata = torchserve_metadata(model, version)
        return Description(metadata, _config(metadata), engine.is_ready)
    translator = ModelTranslator(V2Request(Operation.MODEL_METADATA, model=model, version=version))
    path_ = translator.request()
    fetched = await fetch_from(engine, path_.path, path_.method, (model, version))
    if fetched.status == 404:
        raise GatewayError(ErrorKind.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
    content = translator.whole(Reply(fetched.status, fetched.body, fetched.content_type))
    if content.status != 200:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, read_error(content.body)[0])
    metadata = torchserve_metadata(model, version)
    return Description(metadata, _config(metadata), is_ready=True)


_CONFIG_TYPES = {"BYTES": "TYPE_STRING", "FP32": "TYPE_FP32"}


def _config(metadata: dict[str, Any]) -> dict[str, Any]:
    """The configuration that a model's metadata alone tell of."""
    tensors = {
        kind: [
            {"name": tensor["name"], "data_type": _CONFIG_TYPES[tensor["datatype"]], "dims": tensor["shape"]}
            for tensor in metadata[f"{kind}s"]
        ]
        for kind in ("input", "output")
    }
    return {"name": metadata["name"], "platform": metadata["platform"], "max_batch_size": 0, **tensors}


DESCRIBERS: dict[EngineProtocol, Callable[[Engine, str, str], Awaitable[Description]]] = {
    EngineProtocol.OPENAI: _openai,
    EngineProtocol.TFSERVING: _tfserving,
    EngineProtocol.TORCHSERVE: _torchserve,
}


_messages = TtlCache[bytes]()  # serialised responses, by RPC, model and version


async def query_metadata(route_target: RouteTarget, model: str, version: str) -> bytes:
    """A serialised ModelMetadataResponse; `model` as the client names it. Raises: RpcError where the engine refuses,
    GatewayError where no answer comes."""
    return await _cached("ModelMetadata", route_target, model, version)


async def query_config(route_target: RouteTarget, model: str, version: str) -> bytes:
    """A serialised ModelConfigResponse; `model` as the client names it. Raises: as `query_metadata`."""
    return await _cached("ModelConfig", route_target, model, version)


async def is_decoupled(route_target: RouteTarget, model: str, version: str) -> bool:
    """Whether a request may have any number of responses. MLServer has no such flag, and answers each REST request
    once. Raises: as `query_metadata`."""
    if not route_target.engine.spec.protocol.traits.reports_decoupled:
        return False
    answer = await query_config(route_target, model, version)
    try:
        config = parse("inference.ModelConfigResponse", answer).config
    except ValueError as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the model's config cannot be read: {error}") from error
    return bool(config.model_transaction_policy.decoupled)


async def _cached(rpc: str, route_target: RouteTarget, model: str, version: str) -> bytes:
    cached = _messages.get(route_target, rpc, model, version)
    if cached is None:
        cached = await _query(rpc, route_target, route_target.spec.model or model, version)
        _messages.put(route_target, cached, rpc, model, version)
    return cached


async def _query(rpc: str, route_target: RouteTarget, model: str, version: str) -> bytes:
    engine = route_target.engine
    if not engine.spec.protocol.is_v2:
        description = await describe(route_target, model, version)
        return response_of_json(rpc, description.config if rpc == "ModelConfig" else description.metadata)
    name = model, version
    if engine.speaks_grpc:
        request = message(f"inference.{rpc}Request")(name=model, version=version).SerializeToString()
        answered = await call_method(engine, RPCS[rpc].path, request, name)
        if not answered.is_good:
            raise RpcError(answered.status, answered.text)
        return answered.message
    path = model_path(model, version) + ("/config" if rpc == "ModelConfig" else "")
    fetched = await fetch_from(engine, path, model=name)
    return rpc_response(rpc, fetched.status, fetched.body)


class ModelDescriptionHandler(LocalHandler):
    """Answers what a V2 client asks about a model of such an engine."""

    def __init__(self, client: Client, request: Request, route_target: RouteTarget) -> None:
        super().__init__(client, request)
        self._route_target = route_target
        self._task: asyncio.Task[None] | None = None

    def body_received(self, data: bytes, ended: bool) -> None:
        if ended:
            self._task = asyncio.get_running_loop().create_task(self._answer())

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._task is not None:
            self._task.cancel()
        super().client_gone(reason, status)

    async def _answer(self) -> None:
        call, route_target = self._plan.call, self._route_target
        name = call.model or ""
        try:
            found = await describe(route_target, route_target.spec.model or name, call.version or "")
        except GatewayError as error:
            self._refuse(route_target.nameless(error), route_target.reply_fields)
            return
        if call.operation is Operation.MODEL_READY:
            self._respond(200 if found.is_ready else 400, b"", route_target.reply_fields, "text/plain")
        else:
            content = found.config if call.operation is Operation.MODEL_CONFIG else found.metadata
            self._respond(200, orjson.dumps(content), route_target.reply_fields)
