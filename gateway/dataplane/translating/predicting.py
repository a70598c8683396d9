"""From a V2 client's body to the translator that takes it to a TF Serving or a TorchServe."""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.config.specs import EngineProtocol
from gateway.dataplane.body import told_json_bytes
from gateway.dataplane.request import Request
from gateway.dataplane.snapshot import Lane
from gateway.dataplane.translating.describing import describe
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.tfserving.inference import InferTranslation
from gateway.protocol.torchserve.asking import Envelope
from gateway.protocol.torchserve.translator import translator
from gateway.protocol.translating import Translator


def make_prediction(request: Request, body: bytes, lane: Lane) -> Translator | Awaitable[Translator]:
    """The translator of an inference.

    Raises: GatewayError where the request is malformed or such engines have no place for it.
    """
    call, spec = request.plan.call, lane.engine.spec
    head_bytes = told_json_bytes(request.json_length, len(body))
    model, version = lane.target.model or call.model or "", call.version or ""
    drop = spec.unsupported == "drop"
    if spec.protocol is EngineProtocol.TORCHSERVE:
        return translator(
            call.operation,
            body,
            head_bytes,
            model=model,
            version=version,
            told=call.model or "",
            envelope=Envelope(spec.envelope),
            drop=drop,
        )
    if call.operation is not Operation.INFER:
        what = f"engine '{spec.name}' speaks tfserving, which has no '{call.operation.value}'"
        raise GatewayError(ErrorKind.UNSUPPORTED, what)
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
