"""TF Serving's gRPC: the calls that a V2 request becomes, their replies, and tensors in TensorFlow's protobuf.

A tensor is written with its data as `tensor_content`, which is V2's raw form, and with `string_val` where it is BYTES.
All of its forms are read: with fewer values than elements the last one repeats, none at all means zeros.
Sources: TF Serving `apis/prediction_service.proto`, `apis/model_service.proto`; TensorFlow
`core/framework/tensor.proto`, `core/framework/tensor.cc` (Tensor::FromProto).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import about
from gateway.protocol.conversion.tensors import (
    Raw,
    RawTensor,
    check_data,
    element_count,
    join_elements,
    narrow,
    split_elements,
)
from gateway.protocol.datatypes import ELEMENT_BYTES
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf import Message
from gateway.protocol.protobuf_wire import read_varint
from gateway.protocol.tfserving import examples
from gateway.protocol.tfserving.infer_request import Method, TFServingRequest
from gateway.protocol.tfserving.messages import message, number_of, of_number, parse
from gateway.protocol.tfserving.model_info import ModelPath

# Fields that hold raw data on the wire, taken from there as they are: tensor_content, and packed fixed-size numbers.
_CONTENT_TAG, _FLOAT_TAG, _DOUBLE_TAG = 0x22, 0x2A, 0x32

# The field that each datatype's values stand in, and their type code there.
_TYPED = {
    **dict.fromkeys(("INT32", "INT16", "INT8", "UINT8", "UINT16"), ("int_val", "i")),
    **dict.fromkeys(("FP16", "BF16"), ("half_val", "i")),
    "FP32": ("float_val", "f"),
    "FP64": ("double_val", "d"),
    "INT64": ("int64_val", "q"),
    "BOOL": ("bool_val", "B"),
    "UINT32": ("uint32_val", "I"),
    "UINT64": ("uint64_val", "Q"),
}
# What a reply of a few bytes may claim to hold, by its last value going on.
_MAX_REPEATED_BYTES = 1 << 28


def fill(proto: Message, tensor: RawTensor) -> None:
    """Set a TensorProto. Raises: ValueError where the tensor's data is not that of its shape."""
    check_data(tensor)
    proto.dtype = number_of(tensor.datatype)
    proto.tensor_shape.SetInParent()
    for axis in tensor.shape:
        proto.tensor_shape.dim.add(size=axis)
    if tensor.datatype == "BYTES":
        proto.string_val.extend(split_elements(tensor.raw, element_count(tensor.shape)))
    else:
        proto.tensor_content = bytes(tensor.raw)


def read(name: str, data: Raw) -> RawTensor:
    """The tensor of a serialised TensorProto. Raises: ValueError where it is malformed, or of a datatype that V2 does
    not have."""
    rest, contents = raw_contents.split(data, _CONTENT_TAG)
    rest, floats = raw_contents.split(rest, _FLOAT_TAG)
    rest, doubles = raw_contents.split(rest, _DOUBLE_TAG)
    proto = parse("TensorProto", rest)
    datatype = of_number(proto.dtype)
    if datatype.startswith("DT_"):
        raise ValueError(f"it is of {datatype}, which V2 does not have")
    if proto.tensor_shape.unknown_rank:
        raise ValueError("its shape is not told")
    shape = tuple([dim.size for dim in proto.tensor_shape.dim])
    if any(axis < 0 for axis in shape):
        raise ValueError(f"its shape {list(shape)} is not told")
    count = element_count(shape)
    content = contents[-1] if contents else b""
    if datatype == "BYTES":
        strings = _unpacked(content, count) if content else _strings(proto.string_val, count)
        return RawTensor(name, datatype, shape, join_elements(strings))
    packed = {"FP32": floats, "FP64": doubles}.get(datatype, [])
    raw: Raw = content
    if not raw:
        raw = packed[0] if len(packed) == 1 else b"".join(packed) + _typed(datatype, proto)
        raw = _repeated(raw, count * ELEMENT_BYTES[datatype], ELEMENT_BYTES[datatype])
    tensor = RawTensor(name, datatype, shape, raw)
    check_data(tensor)
    return tensor


def _typed(datatype: str, proto: Message) -> bytes:
    field, code = _TYPED[datatype]
    values: array[Any] = array(code, getattr(proto, field))
    return narrow(values, ELEMENT_BYTES[datatype])


def _repeated(raw: Raw, size: int, element_bytes: int) -> Raw:
    """The data at its full size, its last element going on."""
    missing = size - len(raw)
    if missing <= 0:
        return raw
    if missing > _MAX_REPEATED_BYTES:
        raise ValueError(f"{len(raw)} bytes of data are not {size}")
    last = bytes(raw[-element_bytes:]) or bytes(element_bytes)
    return bytes(raw) + last * (missing // element_bytes)


def _strings(values: Any, count: int) -> list[bytes]:
    found = list(values)
    last = found[-1] if found else b""
    if len(found) > count or (4 + len(last)) * (count - len(found)) > _MAX_REPEATED_BYTES:
        raise ValueError(f"{len(found)} texts are not {count}")
    return found + [last] * (count - len(found))


def _unpacked(content: Raw, count: int) -> list[bytes]:
    """Strings as `tensor_content` has them: all lengths as varints, then all bytes."""
    data, at = bytes(content), 0
    sizes: list[int] = []
    try:
        for _ in range(count):
            size, at = read_varint(data, at)
            sizes.append(size)
    except (IndexError, GatewayError):
        raise ValueError("the lengths of its texts are malformed") from None
    if at + sum(sizes) != len(data):
        raise ValueError(f"{len(data)} bytes of data are not {count} texts")
    texts = []
    for size in sizes:
        texts.append(data[at : at + size])
        at += size
    return texts


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


def infer_call(requested: TFServingRequest) -> EngineCall:
    """Asks for an inference. Raises: ValueError where the tensors cannot be told, GatewayError(UNSUPPORTED) where no
    feature holds them."""
    match requested.method:
        case Method.PREDICT:
            request = message("PredictRequest")(output_filter=requested.wanted)
            for tensor in requested.tensors:
                with about(f"input '{tensor.name}'"):
                    fill(request.inputs[tensor.name], tensor)
            rpc = "Predict"
        case Method.CLASSIFY:
            request = message("ClassificationRequest")()
            examples.fill_examples(request.input.example_list, requested)
            rpc = "Classify"
        case Method.REGRESS:
            request = message("RegressionRequest")()
            examples.fill_examples(request.input.example_list, requested)
            rpc = "Regress"
    _set_spec(request.model_spec, requested.target, requested.signature_name)
    return _call(PREDICTION_SERVICE, rpc, request)


def read_infer(data: bytes, requested: TFServingRequest) -> tuple[str, list[RawTensor]]:
    """The version that answered, empty where it is not told, and its outputs. Raises: ValueError where the reply is
    malformed."""
    match requested.method:
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
        return read(name, values[-1] if values else b"")


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
