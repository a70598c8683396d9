"""The codec for requests of text to a target's engine: the API, the chat template, the model's signature."""

from __future__ import annotations

from functools import lru_cache
from time import strftime
from typing import Any

from gateway.config.engine_specs import EngineSpec
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.model_description import TtlCache, query_config, query_metadata
from gateway.protocol.conversion.control import json_of_response
from gateway.protocol.conversion.control_errors import RpcError, rest_error
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.api_codecs import API_CODECS
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.engine_codecs import GenerateCodec, MLServerCodec, OpenAICodec, PromptCodec
from gateway.protocol.llm.generate_engine_request import GenerateConvention, GenerateSignature, signature_of
from gateway.protocol.llm.templates import Template, read_template
from gateway.protocol.llm.translation import EngineCodec
from gateway.protocol.operations import LlmApi

# What an engine is asked in, first of those that it has: the one that says most.
_FOR_MESSAGES = (LlmApi.CHAT, LlmApi.MESSAGES, LlmApi.RESPONSES, LlmApi.COMPLETIONS)
_FOR_PROMPTS = (LlmApi.COMPLETIONS, LlmApi.CHAT, LlmApi.MESSAGES, LlmApi.RESPONSES)

_signatures = TtlCache[GenerateSignature]()


def cached_codec(route_target: RouteTarget, generation: Generation, version: str) -> EngineCodec | None:
    """The codec of the target's engine; None where the model's metadata must be queried first (`find_codec`).

    Raises: GatewayError(UNSUPPORTED) where the engine has no API for text.
    """
    spec = route_target.engine.spec
    model = route_target.spec.model or generation.model
    if spec.protocol.traits.has_dialects:
        return _openai_codec(spec, model, generation)
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no place for a generation of text"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    signature = _signatures.get(route_target, model, version)
    return _generate_codec(spec, model, version, signature) if signature is not None else None


async def find_codec(route_target: RouteTarget, generation: Generation, version: str) -> EngineCodec:
    """The same, by the metadata of the model, which it queries. Raises: GatewayError."""
    model = route_target.spec.model or generation.model
    metadata = await find_metadata(route_target, generation.model, version)
    signature = signature_of(metadata)
    if (
        signature.kind is GenerateConvention.TRTLLM
    ):  # whether its stream repeats itself is told by its configuration alone
        signature = signature_of(metadata, await _config(route_target, generation.model, version))
    _signatures.put(route_target, signature, model, version)
    return _generate_codec(route_target.engine.spec, model, version, signature)


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


def _openai_codec(spec: EngineSpec, model: str, generation: Generation) -> EngineCodec:
    wanted = _FOR_MESSAGES if generation.prompt is None else _FOR_PROMPTS
    api = next((api for api in wanted if api.value in spec.dialects), None)
    if api is None:
        what = f"engine '{spec.name}' has no dialect for text, only {', '.join(spec.dialects)}"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    codec = OpenAICodec(api, API_CODECS[api], spec.base_path, model, spec.unsupported == "drop")
    return (
        PromptCodec(codec, _template(spec.chat_template), strftime, spec.name) if api is LlmApi.COMPLETIONS else codec
    )


def _generate_codec(spec: EngineSpec, model: str, version: str, signature: GenerateSignature) -> EngineCodec:
    codec = GenerateCodec(model, version, signature, spec.unsupported == "drop")
    inner = codec if spec.protocol.traits.has_generate else MLServerCodec(codec)
    return PromptCodec(inner, _template(spec.chat_template), strftime, spec.name)


@lru_cache(maxsize=64)
def _template(text: str | None) -> Template | None:
    return read_template(text) if text is not None else None
