"""The messages of TorchServe's gRPC service, read and written by hand.

    PredictionsRequest   {model_name = 1, model_version = 2, input = 3 map<string, bytes>, sequence_id = 4}
    PredictionResponse   {prediction = 1, sequence_id = 2, status = 3 google.rpc.Status {code = 1, message = 2}}

REST is the better way: here TorchServe tells no content type, reads no JSON for the handler (its `json` envelope
fails), and a StreamPredictions to a model that answers once kills its worker (`GRPCJob.java` asks for a header that is
not there).
Source: TorchServe 0.12 `inference.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf_wire import fields, write_varint
from gateway.protocol.torchserve.reply import infer_response
from gateway.protocol.torchserve.request import Envelope, TorchServeRequest
from gateway.protocol.torchserve.translator import TorchServeInferTranslator
from gateway.protocol.translator import GRPC, EngineRequest, Reply

_SERVICE = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/"
PREDICTIONS = _SERVICE + "Predictions"
STREAM_PREDICTIONS = _SERVICE + "StreamPredictions"
PING = _SERVICE + "Ping"  # google.protobuf.Empty, so b""

_DATA = "data"  # where handlers look first; TorchServe's own clients call a body so
_BODY = "body"


@dataclass(frozen=True, slots=True)
class Prediction:
    """A PredictionResponse. `code` and `error` are what StreamPredictions2 tells of a failure: 0 and empty where none
    came."""

    content: bytes
    sequence_id: str = ""
    code: int = 0
    error: str = ""


def predictions_request(sent: TorchServeRequest, model: str, version: str = "") -> bytes:
    """A serialised PredictionsRequest.

    Raises: GatewayError(UNSUPPORTED) where the envelope does not work over gRPC, or it is of a sequence: one call has
    no place for that.
    """
    if sent.envelope is Envelope.JSON:
        raise unsupported("TorchServe's json envelope reads no request that came by gRPC; give the engine a REST port")
    if sent.fields:
        raise unsupported("TorchServe's Predictions knows no sequences; give the engine a REST port")
    pieces = [_field(0x0A, model.encode())]
    if version:
        pieces.append(_field(0x12, version.encode()))
    for part in sent.parts:
        name = _DATA if part.name == _BODY else part.name
        pieces.append(_field(0x1A, _field(0x0A, name.encode()) + _field(0x12, part.content)))
    return b"".join(pieces)


def prediction(message: bytes) -> Prediction:
    """A serialised PredictionResponse, read.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    content = sequence_id = b""
    code, error = 0, ""
    try:
        for number, _, value in fields(message):
            match number, value:
                case 1, bytes():
                    content = value
                case 2, bytes():
                    sequence_id = value
                case 3, bytes():
                    code, error = _status(value)
        return Prediction(content, sequence_id.decode(), code, error)
    except (GatewayError, UnicodeDecodeError):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's message is no PredictionResponse") from None


def _status(message: bytes) -> tuple[int, str]:
    code, error = 0, ""
    for number, _, value in fields(message):
        match number, value:
            case 1, int():
                code = value
            case 2, bytes():
                error = value.decode()
    return code, error


def _field(tag: int, content: bytes) -> bytes:
    return bytes((tag,)) + write_varint(len(content)) + content


class CallTranslator(TorchServeInferTranslator):
    """An infer whose request is a call: its path is the method's, its body the message."""

    def request(self) -> EngineRequest:
        sent = self._read()
        call = predictions_request(sent, self._model, self._version)
        return EngineRequest(PREDICTIONS, call, GRPC, dropped=sent.dropped)

    def whole(self, reply: Reply) -> Reply:
        if reply.status != 200:
            return reply  # `{"error": text}`, which is V2's too
        assert self._sent is not None, "request() comes before whole()"
        found = prediction(reply.body)
        if found.code:
            return Reply(500, orjson.dumps({"error": found.error}))
        return self._rest_reply(
            infer_response(self._sent, found.content, "", model=self._model_name, version=self._version)
        )
