"""From a V2 client's body to the translator that takes it to a TF Serving, a TorchServe or an MLServer."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.config.specs import EngineProtocol
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.request_body import told_json_bytes
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.model_description import describe
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.infer_stream import InferStreamTranslator
from gateway.protocol.mlserver.translator import translator as mlserver_translator
from gateway.protocol.operations import Operation
from gateway.protocol.tfserving.grpc_translator import CallTranslation
from gateway.protocol.tfserving.inference import InferTranslation
from gateway.protocol.torchserve.grpc_translator import CallTranslator
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.torchserve.translator import translator
from gateway.protocol.translator import Translator


def make_prediction(request: Request, body: bytes, lane: Lane) -> Translator | Awaitable[Translator]:
    """The translator of an inference.

    Raises: GatewayError where the request is malformed or such engines have no place for it.
    """
    call, spec = request.plan.call, lane.engine.spec
    head_bytes = told_json_bytes(request.json_length, len(body))
    model, version = lane.target.model or call.model or "", call.version or ""
    drop = spec.unsupported == "drop"
    by_call = not lane.engine.speaks_rest
    if by_call and call.operation is not Operation.INFER:
        what = f"engine '{spec.name}' has gRPC alone, which has no '{call.operation.value}': give it an http address"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    if spec.protocol is EngineProtocol.TORCHSERVE:
        envelope = Envelope(spec.envelope)
        if by_call:
            return CallTranslator(body, head_bytes, model=model, version=version, envelope=envelope, drop=drop)
        return translator(
            call.operation,
            body,
            head_bytes,
            model=model,
            version=version,
            envelope=envelope,
            drop=drop,
        )
    if call.operation is not Operation.INFER:
        what = f"engine '{spec.name}' speaks tfserving, which has no '{call.operation.value}'"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    if by_call:
        return CallTranslation(body, head_bytes, model=model, version=version, drop=drop)
    translation = InferTranslation(body, head_bytes, model=model, version=version, drop=drop)
    return _with_signatures(lane, translation) if translation.wants_signatures else translation


async def _with_signatures(lane: Lane, translation: InferTranslation) -> Translator:
    """TF Serving's JSON does not tell datatypes, so the model's signatures must be known."""
    target = translation.target
    name = f"{target.name}:{target.label}" if target.label else target.name
    found = await describe(lane, name, target.version)
    if found.signatures is not None:
        translation.know(found.signatures)
    return translation


def make_for_mlserver(request: Request, body: bytes, lane: Lane) -> Translator:
    """The translator of what Triton's clients ask and MLServer does not know: generate, tensors behind the JSON.

    Raises: GatewayError.
    """
    call = request.plan.call
    head_bytes = told_json_bytes(request.json_length, len(body))
    model = lane.target.model or call.model or ""
    return mlserver_translator(call.operation, body, head_bytes, model=model, version=call.version or "")


def make_infer_stream(request: Request, body: bytes, lane: Lane) -> Translator:
    """The translator of MLServer's infer_stream for an engine that has generate_stream.

    Raises: GatewayError.
    """
    call, spec = request.plan.call, lane.engine.spec
    if not spec.protocol.is_v2:
        what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no infer_stream: ask generate_stream"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
    return InferStreamTranslator(body, model=lane.target.model or call.model or "", version=call.version or "")
