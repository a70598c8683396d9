"""How the engine of a target is asked for text: in which API, with which template, as which kind of model."""

from __future__ import annotations

from functools import lru_cache
from time import strftime
from typing import Any

from gateway.config.specs import EngineSpec
from gateway.dataplane.context.snapshot import RouteTarget
from gateway.dataplane.translation.model_description import TtlCache, query_config, query_metadata
from gateway.protocol.conversion.control import json_of_response
from gateway.protocol.conversion.control_errors import RpcError, rest_error
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.engine_codecs import GenerateSide, MLServerSide, OpenAISide, PromptSide
from gateway.protocol.llm.generate_engine_request import Flavour, Kind, flavour_of
from gateway.protocol.llm.templates import Template, read_template
from gateway.protocol.llm.translation import EngineSide
from gateway.protocol.operations import LlmApi

# What an engine is asked in, first of those that it has: the one that says most.
_FOR_MESSAGES = (LlmApi.CHAT, LlmApi.MESSAGES, LlmApi.RESPONSES, LlmApi.COMPLETIONS)
_FOR_PROMPTS = (LlmApi.COMPLETIONS, LlmApi.CHAT, LlmApi.MESSAGES, LlmApi.RESPONSES)

_flavours = TtlCache[Flavour]()


def known_side(route_target: RouteTarget, generation: Generation, version: str) -> EngineSide | None:
    """How the target's engine is asked; None where it must be asked about the model first (`find_side`). Raises:
    GatewayError(UNSUPPORTED) where it cannot be asked for text at all."""
    spec = route_target.engine.spec
    model = route_target.spec.model or generation.model
    if spec.protocol.traits.has_dialects:
        return _openai_side(spec, model, generation)
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no place for a generation of text"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    flavour = _flavours.get(route_target, model, version)
    return _generate_side(spec, model, version, flavour) if flavour is not None else None


async def find_side(route_target: RouteTarget, generation: Generation, version: str) -> EngineSide:
    """The same, once a V2 engine has told about the model. Raises: GatewayError."""
    model = route_target.spec.model or generation.model
    metadata = await find_metadata(route_target, generation.model, version)
    flavour = flavour_of(metadata)
    if flavour.kind is Kind.TRTLLM:  # whether its stream repeats itself is told by its configuration alone
        flavour = flavour_of(metadata, await _config(route_target, generation.model, version))
    _flavours.put(route_target, flavour, model, version)
    return _generate_side(route_target.engine.spec, model, version, flavour)


async def find_metadata(route_target: RouteTarget, model: str, version: str) -> dict[str, Any]:
    """What a V2 engine says of a model, which is named as the client does. Raises: GatewayError."""
    try:
        metadata = await query_metadata(route_target, model, version)
    except RpcError as error:
        kind = ErrorKind.NOT_FOUND if rest_error(error.code, "").status == 404 else ErrorKind.UPSTREAM_PROTOCOL
        raise GatewayError(kind, error.message) from error
    described: dict[str, Any] = json_of_response("ModelMetadata", metadata)
    return described


async def _config(route_target: RouteTarget, model: str, version: str) -> dict[str, Any] | None:
    """A model's configuration; None where its engine tells none."""
    try:
        answer = await query_config(route_target, model, version)
    except RpcError:
        return None
    config: dict[str, Any] = json_of_response("ModelConfig", answer)
    return config


def _openai_side(spec: EngineSpec, model: str, generation: Generation) -> EngineSide:
    wanted = _FOR_MESSAGES if generation.prompt is None else _FOR_PROMPTS
    api = next((api for api in wanted if api.value in spec.dialects), None)
    if api is None:
        what = f"engine '{spec.name}' has no dialect for text, only {', '.join(spec.dialects)}"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    side = OpenAISide(api, API_CODECS[api], spec.base_path, model, spec.unsupported == "drop")
    return PromptSide(side, _template(spec.chat_template), strftime, spec.name) if api is LlmApi.COMPLETIONS else side


def _generate_side(spec: EngineSpec, model: str, version: str, flavour: Flavour) -> EngineSide:
    side = GenerateSide(model, version, flavour, spec.unsupported == "drop")
    inner = side if spec.protocol.traits.has_generate else MLServerSide(side)
    return PromptSide(inner, _template(spec.chat_template), strftime, spec.name)


@lru_cache(maxsize=64)
def _template(text: str | None) -> Template | None:
    return read_template(text) if text is not None else None
