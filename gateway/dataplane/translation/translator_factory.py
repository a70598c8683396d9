"""From a client's body to the translator that takes it to the lane's engine."""

from __future__ import annotations

from collections.abc import Awaitable
from time import time

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.request_body import declared_json_bytes
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.engine_codec_lookup import find_metadata, find_side, known_side
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import generate_client, infer_text
from gateway.protocol.llm.api_codecs import API_CODECS, MakeWriter
from gateway.protocol.llm.canonical import Generation
from gateway.protocol.llm.embeddings import EmbeddingByInfer, EmbeddingsRequest, InferByEmbedding, signature_of
from gateway.protocol.llm.embeddings import read_request as read_embeddings
from gateway.protocol.llm.translation import EngineSide, GenerationTranslator
from gateway.protocol.operations import LlmApi, Operation
from gateway.protocol.translator import Translator
from gateway.protocol.v2_facts import read_body_facts

# What the text to go on with is called by models behind V2.
_TEXT_INPUT = "text_input"


def make_generation(request: Request, body: bytes, lane: Lane) -> Translator | Awaitable[Translator]:
    """The translator of a request for text. Raises: GatewayError where the request is malformed or the engine cannot be
    asked for it."""
    if request.plan.call.api is LlmApi.INFER and _embeds(request, body, lane):
        return _by_embedding(request, body, lane)
    generation, make_writer = read_generation(request, body)
    version = request.plan.call.version or ""
    side = known_side(lane, generation, version)
    if side is None:
        return _make_later(request, generation, make_writer, lane, version)
    return translator_of(request, generation, make_writer, lane, side)


async def _make_later(
    request: Request, generation: Generation, make_writer: MakeWriter, lane: Lane, version: str
) -> Translator:
    return translator_of(request, generation, make_writer, lane, await find_side(lane, generation, version))


def translator_of(
    request: Request, generation: Generation, make_writer: MakeWriter, lane: Lane, side: EngineSide
) -> GenerationTranslator:
    """The translator of a generation for an engine that is asked so."""
    api = request.plan.call.api
    assert api is not None
    prefix = API_CODECS[api].id_prefix if api in API_CODECS else ""
    reply_id = prefix + (request.id or b"").decode("latin-1")
    writer = make_writer(generation, id=reply_id, created=int(time()), model=lane.target.model or generation.model)
    return GenerationTranslator(generation, side, writer, always_stream=lane.engine.spec.always_stream)


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


def _embeds(request: Request, body: bytes, lane: Lane) -> bool:
    """Whether a V2 infer asks an OpenAI engine for vectors: its one input is not the text of a generation."""
    spec = lane.engine.spec
    if not spec.protocol.traits.has_dialects or LlmApi.EMBEDDINGS.value not in spec.dialects:
        return False
    facts = read_body_facts(Operation.INFER, body[: declared_json_bytes(request.json_length, len(body))])
    return len(facts.inputs) == 1 and facts.inputs[0].name != _TEXT_INPUT


def _by_embedding(request: Request, body: bytes, lane: Lane) -> Translator:
    model = request.plan.call.model or ""
    path = f"{lane.engine.spec.base_path}/embeddings"
    head_bytes = declared_json_bytes(request.json_length, len(body))
    return InferByEmbedding(body, head_bytes, path=path, model=lane.target.model or model)


def make_embedding(request: Request, body: bytes, lane: Lane) -> Translator | Awaitable[Translator]:
    """The translator of an OpenAI client's request for embeddings, for a V2 engine. Raises: GatewayError."""
    spec = lane.engine.spec
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' has no embeddings: its dialects are {', '.join(spec.dialects)}"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return _embedding(read_embeddings(body), lane)


async def _embedding(embeddings: EmbeddingsRequest, lane: Lane) -> Translator:
    signature = signature_of(await find_metadata(lane, embeddings.model, ""))
    drop = lane.engine.spec.unsupported == "drop"
    return EmbeddingByInfer(embeddings, signature, model=lane.target.model or embeddings.model, drop=drop)
