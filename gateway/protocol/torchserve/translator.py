"""The translation of one V2 request for a TorchServe, by what it asks.

REST is the better way: by gRPC TorchServe tells no content type, reads no JSON for the handler (its `json` envelope
fails), and a StreamPredictions to a model that answers once kills its worker (`GRPCJob.java` asks for a header that is
not there).
Source: TorchServe 0.12 `inference.proto`.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion.errors import error_json, unsupported
from gateway.protocol.conversion.infer import infer_request_of_rest, rest_of_infer_response
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.protobuf import Message
from gateway.protocol.protobuf.text_schema import TextSchema
from gateway.protocol.torchserve.generate import TorchServeGenerateTranslator
from gateway.protocol.torchserve.reply import OUTPUT, error_of, infer_response
from gateway.protocol.torchserve.request import (
    BODY,
    Envelope,
    TorchServeRequest,
    http_request,
    predictions_path,
    torchserve_request,
)
from gateway.protocol.translator import GRPC, EngineRequest, Reply, Translator, V2Request, WholeTranslator, in_rest

PLATFORM = "torchserve"
PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"

_schema = TextSchema("""
google.rpc.Status code:1:int32 message:2:string
org.pytorch.serve.grpc.inference.PredictionsRequest model_name:1:string model_version:2:string input:3:%bytes
org.pytorch.serve.grpc.inference.PredictionResponse prediction:1:bytes sequence_id:2:string status:3:Status
""")
_DATA = "data"  # where handlers look first; TorchServe's own clients call a body so


def torchserve_translator(request: V2Request, envelope: Envelope = Envelope.BODY) -> Translator:
    """The translation of a request for TorchServe's REST. Raises: GatewayError(UNSUPPORTED) for an operation that
    TorchServe has nothing like."""
    match request.operation:
        case Operation.INFER:
            return TorchServeInferTranslator(request, envelope)
        case Operation.GENERATE | Operation.GENERATE_STREAM:
            return TorchServeGenerateTranslator(request, envelope)
        case Operation.MODEL_READY | Operation.MODEL_METADATA:
            return ModelTranslator(request)
        case _:
            raise unsupported(f"'{request.operation.value}' is nothing that TorchServe's inference API has")


class TorchServeInferTranslator(WholeTranslator):
    """One infer, in JSON or with binary tensors."""

    def __init__(self, request: V2Request, envelope: Envelope) -> None:
        """Raises: GatewayError, as `torchserve_request`."""
        self._model, self._version = request.model, request.version
        message, self._wanted = infer_request_of_rest(request.body, request.head_bytes, self._model, self._version)
        self._sent = torchserve_request(message, envelope, drop=request.drop)

    def request(self) -> EngineRequest:
        return http_request(self._sent, self._model, self._version)

    def whole(self, reply: Reply) -> Reply:
        return error_of(reply) if reply.status >= 400 else self._reply_of(reply.body, reply.content_type)

    def _reply_of(self, content: bytes, content_type: str) -> Reply:
        message = infer_response(self._sent, content, content_type, model=self._model, version=self._version)
        return in_rest(rest_of_infer_response(message, self._wanted))


class TorchServeCallTranslator(TorchServeInferTranslator):
    """An infer whose request is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        call = predictions_request(self._sent, self._model, self._version)
        return EngineRequest(PREDICTIONS, call, GRPC, dropped=self._sent.dropped)

    def whole(self, reply: Reply) -> Reply:
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        found = prediction(reply.body)
        if found.status.code:
            return Reply(500, error_json(found.status.message))
        return self._reply_of(found.prediction, "")


class ModelTranslator(WholeTranslator):
    """Whether TorchServe has a model, and what a V2 client may know of it.

    Its inference port answers this without asking the model: OPTIONS describes a model's path, 404 where there is none.
    Whether its workers live is told by the management port alone, or for all models together by `GET /ping`. Its
    models declare no tensors; the metadata says what every handler takes and gives, one BYTES.
    """

    def __init__(self, request: V2Request) -> None:
        self._request = request

    def request(self) -> EngineRequest:
        return EngineRequest(predictions_path(self._request.model, self._request.version), method="OPTIONS")

    def whole(self, reply: Reply) -> Reply:
        """A model that is not there is not ready, which Triton tells by 400."""
        is_ready = self._request.operation is Operation.MODEL_READY
        if reply.status >= 400:
            error = error_of(reply)
            return Reply(400, error.body) if is_ready and reply.status == 404 else error
        if is_ready:
            return Reply(200)
        return Reply(200, orjson.dumps(metadata_of(self._request.model, self._request.version)))


def metadata_of(model: str, version: str = "") -> dict[str, Any]:
    """V2's metadata of a model that declares none."""
    return {
        "name": model,
        "versions": [version] if version else [],
        "platform": PLATFORM,
        "inputs": [{"name": "input", "datatype": "BYTES", "shape": [1]}],
        "outputs": [{"name": OUTPUT, "datatype": "BYTES", "shape": [1]}],
    }


def predictions_request(sent: TorchServeRequest, model: str, version: str = "") -> bytes:
    """A serialised PredictionsRequest. Raises: GatewayError(UNSUPPORTED) where the envelope does not work over gRPC, or
    it is of a sequence: one call has no place for that."""
    if sent.envelope is Envelope.JSON:
        raise unsupported("TorchServe's json envelope reads no request that came by gRPC; give the engine a REST port")
    if sent.fields:
        raise unsupported("TorchServe's Predictions knows no sequences; give the engine a REST port")
    request = _schema.message("PredictionsRequest")(model_name=model, model_version=version)
    for part in sent.parts:
        request.input[_DATA if part.name == BODY else part.name] = part.content
    data: bytes = request.SerializeToString()
    return data


def prediction(data: bytes) -> Message:
    """A PredictionResponse; only a failed one has a status other than 0. Raises: GatewayError(UPSTREAM_PROTOCOL) where
    it is malformed."""
    try:
        return _schema.parse("PredictionResponse", data)
    except ValueError:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's message is no PredictionResponse") from None
