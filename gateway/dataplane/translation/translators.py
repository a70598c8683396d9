"""The translator of a request, by the engine's protocol and the API that the client uses: one row for each protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from time import time

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.request_body import declared_json_bytes
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.translation.engine_codec_lookup import cached_codec, find_codec, find_metadata
from gateway.dataplane.translation.model_description import describe
from gateway.dataplane.translation.translation import Make
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import generate_client, infer_text
from gateway.protocol.llm.api_codecs import API_CODECS, MakeWriter
from gateway.protocol.llm.cache_salt import salted_fields
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.embeddings import EmbeddingByInfer, EmbeddingsRequest, InferByEmbedding, signature_of
from gateway.protocol.llm.embeddings import read_request as read_embeddings
from gateway.protocol.llm.messages_request import read_count_request
from gateway.protocol.llm.token_count import TokenCountTranslator
from gateway.protocol.llm.translation import EngineCodec, GenerationTranslator
from gateway.protocol.mlserver.translator import InferStreamTranslator, mlserver_translator
from gateway.protocol.operations import ApiCall, LlmApi, Operation
from gateway.protocol.principal import tenant_of
from gateway.protocol.tfserving.infer_request import Method
from gateway.protocol.tfserving.inference import CallTranslation, InferTranslation
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.torchserve.translator import TorchServeCallTranslator, torchserve_translator
from gateway.protocol.translator import Translator, V2Request
from gateway.protocol.v2_facts import read_body_facts

# What the text to go on with is called by models behind V2.
_TEXT_INPUT = "text_input"


def make_generation(request: Request, body: bytes, route_target: RouteTarget) -> Translator | Awaitable[Translator]:
    """The translator of a request for text. Raises: GatewayError where the request is malformed or the engine cannot be
    asked for it."""
    if request.plan.call.api is LlmApi.INFER and _embeds(request, body, route_target):
        model = route_target.spec.model or request.plan.call.model or ""
        head_bytes = declared_json_bytes(request.json_length, len(body))
        return InferByEmbedding(body, head_bytes, path=f"{route_target.engine.spec.base_path}/embeddings", model=model)
    generation, make_writer = read_generation(request, body)
    version = request.plan.call.version or ""
    codec = cached_codec(route_target, generation, version)
    if codec is not None:
        return translator_of(request, generation, make_writer, route_target, codec)

    async def make_later() -> Translator:
        return translator_of(
            request, generation, make_writer, route_target, await find_codec(route_target, generation, version)
        )

    return make_later()


def translator_of(
    request: Request, generation: Generation, make_writer: MakeWriter, route_target: RouteTarget, codec: EngineCodec
) -> GenerationTranslator:
    """The translator of a generation for an engine that is asked so.

    Raises: GatewayError(BAD_REQUEST) where its `cache_salt` is no text.
    """
    api = request.plan.call.api
    assert api is not None
    if route_target.salts_cache and not route_target.engine.passes(request.plan.call):  # else the body has it
        options = salted_fields(dict(generation.options), tenant_of(request.plan.principal))
        generation = replace(generation, options=options)
    prefix = API_CODECS[api].id_prefix if api in API_CODECS else ""
    reply_id = prefix + (request.id or b"").decode("latin-1")
    writer = make_writer(
        generation, id=reply_id, created=int(time()), model=route_target.spec.model or generation.model
    )
    return GenerationTranslator(generation, codec, writer, always_stream=route_target.engine.spec.always_stream)


def read_generation(request: Request, body: bytes) -> tuple[Generation, MakeWriter]:
    """What a client asks for, and who writes its reply. Raises: GatewayError where the body is malformed or says what
    no engine can be told."""
    call = request.plan.call
    model = call.model or ""
    if call.api is LlmApi.GENERATE:
        streams = call.operation is Operation.GENERATE_STREAM
        return generate_client.read_request(body, model=model, stream=streams), generate_client.GenerateReplyWriter
    if call.api is LlmApi.INFER:
        head_bytes = declared_json_bytes(request.json_length, len(body))
        return infer_text.read_request(body, head_bytes, model=model), infer_text.InferReplyWriter
    assert call.api is not None
    codec = API_CODECS[call.api]
    return codec.read_request(body), codec.reply_writer


def _embeds(request: Request, body: bytes, route_target: RouteTarget) -> bool:
    """Whether a V2 infer asks an OpenAI engine for vectors: its one input is not the text of a generation."""
    spec = route_target.engine.spec
    if not spec.protocol.traits.has_dialects or LlmApi.EMBEDDINGS.value not in spec.dialects:
        return False
    facts = read_body_facts(Operation.INFER, body[: declared_json_bytes(request.json_length, len(body))])
    return len(facts.inputs) == 1 and facts.inputs[0].name != _TEXT_INPUT


def make_token_count(request: Request, body: bytes, route_target: RouteTarget) -> Translator:
    """The translator of a count of tokens, for an engine without Anthropic's messages. Raises: GatewayError."""
    spec = route_target.engine.spec
    generation = read_count_request(body)
    return TokenCountTranslator(
        generation,
        model=route_target.spec.model or generation.model,
        base_path=spec.base_path,
        has_chat=LlmApi.CHAT.value in spec.dialects or LlmApi.COMPLETIONS.value in spec.dialects,
        request_id=(request.id or b"").decode("latin-1"),
    )


def make_embedding(request: Request, body: bytes, route_target: RouteTarget) -> Translator | Awaitable[Translator]:
    """The translator of an OpenAI client's request for embeddings, for a V2 engine. Raises: GatewayError."""
    spec = route_target.engine.spec
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' has no embeddings: its dialects are {', '.join(spec.dialects)}"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return _embedding(read_embeddings(body), route_target)


async def _embedding(embeddings: EmbeddingsRequest, route_target: RouteTarget) -> Translator:
    signature = signature_of(await find_metadata(route_target, embeddings.model, ""))
    drop = route_target.engine.spec.unsupported == "drop"
    return EmbeddingByInfer(embeddings, signature, model=route_target.spec.model or embeddings.model, drop=drop)


def make_tfserving(request: Request, body: bytes, route_target: RouteTarget) -> Translator | Awaitable[Translator]:
    """The translator of an inference for a TF Serving. Raises: GatewayError where the request is malformed or such
    engines have no place for it."""
    _check_operation(request, route_target)
    operation = request.plan.call.operation
    if operation is not Operation.INFER:
        what = f"engine '{route_target.engine.spec.name}' speaks tfserving, which has no '{operation.value}'"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    if not route_target.engine.speaks_rest:
        return CallTranslation(_v2_request(request, body, route_target))
    translation = InferTranslation(_v2_request(request, body, route_target))
    is_predict = translation.requested.method is Method.PREDICT
    return _with_signatures(route_target, translation) if is_predict else translation


def make_torchserve(request: Request, body: bytes, route_target: RouteTarget) -> Translator:
    """The translator of an inference or a generation for a TorchServe. Raises: GatewayError, as `make_tfserving`."""
    _check_operation(request, route_target)
    make = torchserve_translator if route_target.engine.speaks_rest else TorchServeCallTranslator
    return make(_v2_request(request, body, route_target), Envelope(route_target.engine.spec.envelope))


def _check_operation(request: Request, route_target: RouteTarget) -> None:
    """Raises: GatewayError(UNSUPPORTED) where an engine that has gRPC alone cannot do what is requested."""
    operation = request.plan.call.operation
    if not route_target.engine.speaks_rest and operation is not Operation.INFER:
        name = route_target.engine.spec.name
        what = f"engine '{name}' has gRPC alone, which has no '{operation.value}': give it an http address"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)


def _v2_request(request: Request, body: bytes, route_target: RouteTarget) -> V2Request:
    call = request.plan.call
    head_bytes = declared_json_bytes(request.json_length, len(body))
    model = route_target.spec.model or call.model or ""
    return V2Request(
        call.operation, body, head_bytes, model, call.version or "", drop=route_target.engine.spec.unsupported == "drop"
    )


async def _with_signatures(route_target: RouteTarget, translation: InferTranslation) -> Translator:
    """TF Serving's JSON does not tell datatypes, so the model's signatures must be known."""
    target = translation.requested.target
    name = f"{target.name}:{target.label}" if target.label else target.name
    found = await describe(route_target, name, target.version)
    if found.signatures is not None:
        translation.know(found.signatures)
    return translation


def make_mlserver(request: Request, body: bytes, route_target: RouteTarget) -> Translator:
    """The translator of what MLServer lacks of Triton's V2: generate, and tensors behind the JSON."""
    return mlserver_translator(_v2_request(request, body, route_target))


def make_infer_stream(request: Request, body: bytes, route_target: RouteTarget) -> Translator:
    """The translator of MLServer's infer_stream for an engine that has generate_stream. Raises: GatewayError."""
    spec = route_target.engine.spec
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no infer_stream: ask generate_stream"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return InferStreamTranslator(_v2_request(request, body, route_target))


# By the client's API; `None` stands for every other one.
_FROM_V2_AND_OPENAI: Mapping[LlmApi | None, Make] = {
    None: make_generation,
    LlmApi.EMBEDDINGS: make_embedding,
    LlmApi.INFER_STREAM: make_infer_stream,
}
TRANSLATORS: dict[EngineProtocol, Mapping[LlmApi | None, Make]] = {
    EngineProtocol.KSERVE: _FROM_V2_AND_OPENAI,
    EngineProtocol.MLSERVER: {**_FROM_V2_AND_OPENAI, LlmApi.GENERATE: make_mlserver, LlmApi.INFER: make_mlserver},
    EngineProtocol.OPENAI: _FROM_V2_AND_OPENAI,
    EngineProtocol.TFSERVING: {None: make_tfserving, LlmApi.INFER_STREAM: make_infer_stream},
    EngineProtocol.TORCHSERVE: {None: make_torchserve, LlmApi.INFER_STREAM: make_infer_stream},
}


def translator_for(call: ApiCall, route_target: RouteTarget) -> Make:
    """What makes the translator of a request for this target's engine."""
    if call.operation is Operation.COUNT_TOKENS:
        return make_token_count
    makers = TRANSLATORS[route_target.engine.spec.protocol]
    return makers.get(call.api) or makers[None]
