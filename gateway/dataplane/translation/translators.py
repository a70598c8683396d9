"""The translator of a request, by the engine's protocol and the API that the client uses: one row for each protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.request_body import declared_json_bytes
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.model_description import describe
from gateway.dataplane.translation.translation import Make
from gateway.dataplane.translation.translator_factory import make_embedding, make_generation
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.translator import InferStreamTranslator, mlserver_translator
from gateway.protocol.operations import ApiCall, LlmApi, Operation
from gateway.protocol.tfserving.infer_request import Method
from gateway.protocol.tfserving.inference import CallTranslation, InferTranslation
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.torchserve.translator import TorchServeCallTranslator, torchserve_translator
from gateway.protocol.translator import Translator, V2Request


def make_tfserving(request: Request, body: bytes, lane: Lane) -> Translator | Awaitable[Translator]:
    """The translator of an inference for a TF Serving. Raises: GatewayError where the request is malformed or such
    engines have no place for it."""
    _check_operation(request, lane)
    operation = request.plan.call.operation
    if operation is not Operation.INFER:
        what = f"engine '{lane.engine.spec.name}' speaks tfserving, which has no '{operation.value}'"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    if not lane.engine.speaks_rest:
        return CallTranslation(_v2_request(request, body, lane))
    translation = InferTranslation(_v2_request(request, body, lane))
    is_predict = translation.requested.method is Method.PREDICT
    return _with_signatures(lane, translation) if is_predict else translation


def make_torchserve(request: Request, body: bytes, lane: Lane) -> Translator:
    """The translator of an inference or a generation for a TorchServe. Raises: GatewayError, as `make_tfserving`."""
    _check_operation(request, lane)
    make = torchserve_translator if lane.engine.speaks_rest else TorchServeCallTranslator
    return make(_v2_request(request, body, lane), Envelope(lane.engine.spec.envelope))


def _check_operation(request: Request, lane: Lane) -> None:
    """Raises: GatewayError(UNSUPPORTED) where an engine that has gRPC alone cannot do what is requested."""
    operation = request.plan.call.operation
    if not lane.engine.speaks_rest and operation is not Operation.INFER:
        name = lane.engine.spec.name
        what = f"engine '{name}' has gRPC alone, which has no '{operation.value}': give it an http address"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)


def _v2_request(request: Request, body: bytes, lane: Lane) -> V2Request:
    call = request.plan.call
    head_bytes = declared_json_bytes(request.json_length, len(body))
    model = lane.target.model or call.model or ""
    return V2Request(
        call.operation, body, head_bytes, model, call.version or "", drop=lane.engine.spec.unsupported == "drop"
    )


async def _with_signatures(lane: Lane, translation: InferTranslation) -> Translator:
    """TF Serving's JSON does not tell datatypes, so the model's signatures must be known."""
    target = translation.requested.target
    name = f"{target.name}:{target.label}" if target.label else target.name
    found = await describe(lane, name, target.version)
    if found.signatures is not None:
        translation.know(found.signatures)
    return translation


def make_mlserver(request: Request, body: bytes, lane: Lane) -> Translator:
    """The translator of what MLServer lacks of Triton's V2: generate, and tensors behind the JSON."""
    return mlserver_translator(_v2_request(request, body, lane))


def make_infer_stream(request: Request, body: bytes, lane: Lane) -> Translator:
    """The translator of MLServer's infer_stream for an engine that has generate_stream. Raises: GatewayError."""
    spec = lane.engine.spec
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no infer_stream: ask generate_stream"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return InferStreamTranslator(_v2_request(request, body, lane))


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


def translator_for(call: ApiCall, lane: Lane) -> Make:
    """What makes the translator of a request for this lane's engine."""
    makers = TRANSLATORS[lane.engine.spec.protocol]
    return makers.get(call.api) or makers[None]
