"""TF Serving's gRPC: the calls that a V2 request becomes, and their replies.

Source: TF Serving `apis/prediction_service.proto`, `apis/model_service.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import about
from gateway.protocol.protobuf import Message
from gateway.protocol.tfserving import examples, tensor_proto
from gateway.protocol.tfserving.infer_request import Method, TFServingRequest
from gateway.protocol.tfserving.json_tensors import RawTensor
from gateway.protocol.tfserving.messages import message, parse
from gateway.protocol.tfserving.model_path import ModelPath

PREDICTION_SERVICE = "tensorflow.serving.PredictionService"
MODEL_SERVICE = "tensorflow.serving.ModelService"

# Fields of PredictResponse and of an entry of its map, whose tensors are cut out: they are large.
_OUTPUTS_TAG, _VALUE_TAG = 0x0A, 0x12


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What an engine is asked over gRPC: the call's path, and the serialised request message."""

    path: bytes
    message: bytes


def metadata_call(target: ModelPath) -> EngineCall:
    """Asks for a model's signatures: `served.read_signatures_message` reads the answer."""
    request = message("GetModelMetadataRequest")(metadata_field=["signature_def"])
    _set_spec(request.model_spec, target)
    return _call(PREDICTION_SERVICE, "GetModelMetadata", request)


def status_call(target: ModelPath) -> EngineCall:
    """Asks for the state of a model's versions: `served.read_versions_message` reads the answer."""
    request = message("GetModelStatusRequest")()
    _set_spec(request.model_spec, target)
    return _call(MODEL_SERVICE, "GetModelStatus", request)


def infer_call(asked: TFServingRequest) -> EngineCall:
    """Asks for an inference.

    Raises: ValueError where the tensors cannot be told, GatewayError(UNSUPPORTED) where no feature holds them.
    """
    match asked.method:
        case Method.PREDICT:
            request = message("PredictRequest")(output_filter=asked.wanted)
            for tensor in asked.tensors:
                with about(f"input '{tensor.name}'"):
                    tensor_proto.fill(request.inputs[tensor.name], tensor)
            rpc = "Predict"
        case Method.CLASSIFY:
            request = message("ClassificationRequest")()
            examples.fill_examples(request.input.example_list, asked)
            rpc = "Classify"
        case Method.REGRESS:
            request = message("RegressionRequest")()
            examples.fill_examples(request.input.example_list, asked)
            rpc = "Regress"
    _set_spec(request.model_spec, asked.target, asked.signature_name)
    return _call(PREDICTION_SERVICE, rpc, request)


def read_infer(data: bytes, asked: TFServingRequest) -> tuple[str, list[RawTensor]]:
    """The version that answered, empty where it is not told, and its outputs.

    Raises: ValueError where the reply is malformed.
    """
    match asked.method:
        case Method.PREDICT:
            rest, entries = raw_contents.split(data, _OUTPUTS_TAG)
            return _version(parse("PredictResponse", rest)), [_output(entry) for entry in entries]
        case Method.CLASSIFY:
            classified = parse("ClassificationResponse", data)
            return _version(classified), examples.classifications_of(classified)
        case Method.REGRESS:
            regressed = parse("RegressionResponse", data)
            return _version(regressed), examples.regressions_of(regressed)


def _output(entry: memoryview) -> RawTensor:
    key, values = raw_contents.split(entry, _VALUE_TAG)
    # What is left of the entry has field 1 alone, a text, as ModelSpec's name is.
    name: str = parse("ModelSpec", key).name
    with about(f"output '{name}'"):
        return tensor_proto.read(name, values[-1] if values else b"")


def _version(response: Message) -> str:
    spec = response.model_spec
    return str(spec.version.value) if spec.HasField("version") else ""


def _set_spec(spec: Message, target: ModelPath, signature_name: str = "") -> None:
    spec.name = target.name
    spec.signature_name = signature_name
    if target.version:
        spec.version.value = int(target.version)
    spec.version_label = target.label


def _call(service: str, rpc: str, request: Message) -> EngineCall:
    return EngineCall(f"/{service}/{rpc}".encode("ascii"), request.SerializeToString())
