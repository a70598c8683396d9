"""The messages of TorchServe's gRPC service.

REST is the better way: here TorchServe tells no content type, reads no JSON for the handler (its `json` envelope
fails), and a StreamPredictions to a model that answers once kills its worker (`GRPCJob.java` asks for a header that is
not there).
Source: TorchServe 0.12 `inference.proto`.
"""

from __future__ import annotations

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import Message
from gateway.protocol.protobuf.text_schema import TextSchema
from gateway.protocol.torchserve.request import BODY, Envelope, TorchServeRequest

PREDICTIONS = "/org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions"

_schema = TextSchema("""
google.rpc.Status code:1:int32 message:2:string
org.pytorch.serve.grpc.inference.PredictionsRequest model_name:1:string model_version:2:string input:3:%bytes
org.pytorch.serve.grpc.inference.PredictionResponse prediction:1:bytes sequence_id:2:string status:3:Status
""")
_DATA = "data"  # where handlers look first; TorchServe's own clients call a body so


def predictions_request(sent: TorchServeRequest, model: str, version: str = "") -> bytes:
    """A serialised PredictionsRequest.

    Raises: GatewayError(UNSUPPORTED) where the envelope does not work over gRPC, or it is of a sequence: one call has
    no place for that.
    """
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
    """A PredictionResponse; only a failed one has a status other than 0.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    try:
        return _schema.parse("PredictionResponse", data)
    except ValueError:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's message is no PredictionResponse") from None
