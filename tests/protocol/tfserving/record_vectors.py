"""Generates `vectors.py` with the classes that TensorFlow and TF Serving generate from their own .proto files.

    python -m venv /tmp/tfs-venv && /tmp/tfs-venv/bin/pip install tensorflow-serving-api
    /tmp/tfs-venv/bin/python -m tests.protocol.tfserving.record_vectors > tests/protocol/tfserving/vectors.py

The tests read the recorded vectors and do not need TensorFlow.
"""

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    predict_pb2,
    regression_pb2,
)

from gateway.protocol.tfserving.messages import SCHEMA

HEADER = '''"""Messages as the classes that TensorFlow and TF Serving generate serialise them, version {tf}.

Made by `record_vectors`, not by hand. half_plus_two is y = x / 2 + 2, the model of TF Serving's documentation; its
signatures are those of TF Serving's `half_plus_two_model_metadata.json`.
"""

# fmt: off
# ruff: noqa: E501
'''

SPEC = {"name": "half_plus_two", "signature_name": "", "version": {"value": 123}}

VALUES = {
    "FP32": (tf.float32, [1.5, -0.0, float("inf"), 3.4028234663852886e38]),
    "FP64": (tf.float64, [1.5, 5e-324, float("-inf"), 0.1]),
    "INT8": (tf.int8, [-128, -1, 0, 127]),
    "INT16": (tf.int16, [-32768, -1, 0, 32767]),
    "INT32": (tf.int32, [-(2**31), -1, 0, 2**31 - 1]),
    "INT64": (tf.int64, [-(2**63), -1, 0, 2**63 - 1]),
    "UINT8": (tf.uint8, [0, 1, 127, 255]),
    "UINT16": (tf.uint16, [0, 1, 32768, 65535]),
    "UINT32": (tf.uint32, [0, 1, 2**31, 2**32 - 1]),
    "UINT64": (tf.uint64, [0, 1, 2**63, 2**64 - 1]),
    "BOOL": (tf.bool, [True, False, True, True]),
    "FP16": (tf.float16, [1.5, -0.0, 65504.0, 6e-08]),
    "BF16": (tf.bfloat16, [1.5, -0.0, 3.3895313892515355e38, 1e-20]),
    "BYTES": (tf.string, [b"text", b"", "gr\u00fcn".encode(), b"\xff\x00"]),
}
FIELDS = dict.fromkeys(("INT32", "INT16", "INT8", "UINT8", "UINT16"), "int_val")
FIELDS |= dict.fromkeys(("FP16", "BF16"), "half_val")
FIELDS |= {"FP32": "float_val", "FP64": "double_val", "INT64": "int64_val", "BOOL": "bool_val"}
FIELDS |= {"UINT32": "uint32_val", "UINT64": "uint64_val", "BYTES": "string_val"}


def typed(datatype, dtype, values, shape):
    """A TensorProto with its values in the typed field, as in TF Serving's replies (Tensor::AsProtoField)."""
    proto = tensor_pb2.TensorProto(dtype=dtype.as_datatype_enum)
    for axis in shape:
        proto.tensor_shape.dim.add(size=axis)
    if datatype in ("FP16", "BF16"):
        values = [int(bits) for bits in np.array(values, dtype=dtype.as_numpy_dtype).view(np.uint16)]
    getattr(proto, FIELDS[datatype]).extend(values)
    return proto.SerializeToString()


def content(datatype, dtype, values, shape):
    """A TensorProto with its data in `tensor_content` (Tensor::AsProtoTensorContent)."""
    if datatype != "BYTES":
        return tf.io.serialize_tensor(tf.constant(values, dtype=dtype, shape=shape)).numpy()
    proto = tensor_pb2.TensorProto.FromString(typed(datatype, dtype, [], shape))
    proto.tensor_content = bytes(map(len, values)) + b"".join(values)  # port::EncodeStringList
    return proto.SerializeToString()


def forms(datatype, dtype, values):
    yield "typed", [2, 2], typed(datatype, dtype, values, [2, 2])
    yield "tensor_content", [2, 2], content(datatype, dtype, values, [2, 2])
    yield "make_tensor_proto", [2, 2], tf.make_tensor_proto(values, dtype=dtype, shape=[2, 2]).SerializeToString()
    yield "a scalar", [], typed(datatype, dtype, values[:1], [])
    yield "its last value goes on", [2, 3], typed(datatype, dtype, values[:2], [2, 3])
    yield "zeros", [3], typed(datatype, dtype, [], [3])
    yield "no elements", [0, 2], typed(datatype, dtype, [], [0, 2])


def tensors():
    """The test vectors of tensors, with the raw data that TensorFlow reads from each."""
    for datatype, (dtype, values) in VALUES.items():
        for form, shape, proto in forms(datatype, dtype, values):
            read = tf.io.parse_tensor(proto, dtype)
            assert read.shape == tuple(shape)
            elements = np.atleast_1d(read.numpy())
            raw = elements.tobytes()
            if datatype == "BYTES":
                raw = b"".join(len(text).to_bytes(4, "little") + text for text in elements.flatten())
            yield f"{datatype}, {form}", datatype, shape, raw, proto


def numbers(values):
    return tf.make_tensor_proto(values, dtype=tf.float32)


def examples(request, values):
    for value in values:
        example = request.input.example_list.examples.add()
        example.features.feature["x"].float_list.value.append(value)
    return request


def as_field(values):
    proto = tensor_pb2.TensorProto(dtype=1, float_val=values)
    proto.tensor_shape.dim.add(size=len(values))
    proto.tensor_shape.dim.add(size=1)
    return proto


def requests():
    predict = predict_pb2.PredictRequest(output_filter=["y"])
    predict.model_spec.name = "half_plus_two"
    predict.inputs["x"].CopyFrom(numbers([[1.0], [2.0], [5.0]]))
    yield "predict", predict
    everything = predict_pb2.PredictRequest()
    everything.model_spec.name = "half_plus_two"
    everything.inputs["x"].CopyFrom(numbers([[1.0], [2.0], [5.0]]))
    yield "predict everything", everything
    labelled = predict_pb2.PredictRequest()
    labelled.model_spec.name = "half_plus_two"
    labelled.model_spec.version_label = "stable"
    labelled.model_spec.signature_name = "serving_default"
    labelled.inputs["x"].CopyFrom(numbers([[1.0], [2.0], [5.0]]))
    yield "predict by label", labelled
    classify = classification_pb2.ClassificationRequest()
    classify.model_spec.name = "half_plus_two"
    classify.model_spec.signature_name = "classify_x_to_y"
    yield "classify", examples(classify, [2.0, 4.0])
    regress = regression_pb2.RegressionRequest()
    regress.model_spec.name = "half_plus_two"
    regress.model_spec.version.value = 123
    regress.model_spec.signature_name = "regress_x_to_y"
    yield "regress", examples(regress, [2.0, 4.0])
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    metadata.model_spec.name = "half_plus_two"
    yield "metadata", metadata
    status = get_model_status_pb2.GetModelStatusRequest()
    status.model_spec.name = "half_plus_two"
    yield "status", status


def features():
    """A regression request with examples that have a feature of each kind."""
    request = regression_pb2.RegressionRequest()
    request.model_spec.name = "m"
    for counts, words in (([1, -2], [b"a", b"\xff"]), ([3, 4], [b"", b"d"])):
        feature = request.input.example_list.examples.add().features.feature
        feature["counts"].int64_list.value.extend(counts)
        feature["words"].bytes_list.value.extend(words)
        feature["flag"].int64_list.value.append(1)
        feature["half"].float_list.value.append(1.5)
    return request.SerializeToString(deterministic=True)


def signature(side, name, dtype, inner, shape):
    info = side[name]
    info.name = inner
    info.dtype = dtype
    if shape is None:
        info.tensor_shape.unknown_rank = True
    for axis in shape or ():
        info.tensor_shape.dim.add(size=axis)


def responses():
    predict = predict_pb2.PredictResponse(model_spec=SPEC | {"signature_name": "serving_default"})
    predict.outputs["y"].CopyFrom(as_field([2.5, 3.0, 4.5]))
    yield "predict", predict
    yield "predict everything", predict
    yield "predict by label", predict
    classify = classification_pb2.ClassificationResponse(model_spec=SPEC | {"signature_name": "classify_x_to_y"})
    for score in (3.0, 4.0):
        classify.result.classifications.add().classes.add(score=score)
    yield "classify", classify
    regress = regression_pb2.RegressionResponse(model_spec=SPEC | {"signature_name": "regress_x_to_y"})
    for value in (3.0, 4.0):
        regress.result.regressions.add(value=value)
    yield "regress", regress
    signatures = get_model_metadata_pb2.SignatureDefMap()
    default = signatures.signature_def["serving_default"]
    default.method_name = "tensorflow/serving/predict"
    signature(default.inputs, "x", 1, "x:0", [-1, 1])
    signature(default.outputs, "y", 1, "y:0", [-1, 1])
    for method, name, output in (("classify", "classify_x_to_y", "scores"), ("regress", "regress_x_to_y", "outputs")):
        made = signatures.signature_def[name]
        made.method_name = f"tensorflow/serving/{method}"
        signature(made.inputs, "inputs", 7, "tf_example:0", None)
        signature(made.outputs, output, 1, "y:0", [-1, 1])
    metadata = get_model_metadata_pb2.GetModelMetadataResponse(model_spec=SPEC)
    metadata.metadata["signature_def"].Pack(signatures, deterministic=True)
    yield "metadata", metadata
    status = get_model_status_pb2.GetModelStatusResponse()
    status.model_version_status.add(version=123, state=30).status.SetInParent()
    yield "status", status


def schemas():
    """The fields of the messages in `messages.SCHEMA`, as the generated classes define them."""
    ours = {line.partition(" ")[0] for line in SCHEMA.split("\n")}
    seen = {}

    def walk(message):
        if message.full_name not in seen:
            seen[message.full_name] = message
            for field in message.fields:
                if field.message_type:
                    walk(field.message_type)

    for made in (*(message for _, message in requests()), *(message for _, message in responses())):
        walk(made.DESCRIPTOR)
    walk(get_model_metadata_pb2.SignatureDefMap.DESCRIPTOR)
    for name, message in sorted(seen.items()):
        name = name.replace("TensorShapeProto.Dim", "Dim")
        if name in ours:
            yield name, [spelled(field) for field in message.fields]


TYPES = {1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}
TYPES |= {13: "uint32", 14: "int32", 18: "sint64"}  # an enum is an int32 on the wire


def spelled(field):
    kind = field.message_type.name if field.message_type else TYPES[field.type]
    if field.message_type and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        kind = "%" + (value.message_type.name if value.message_type else TYPES[value.type])
    elif field.is_repeated:
        kind = "*" + kind
    return f"{field.name}:{field.number}:{kind}"


def main():
    print(HEADER.format(tf=tf.__version__))
    print("# What it is, V2's datatype, shape and raw data, the serialised TensorProto.")
    print("TENSORS: list[tuple[str, str, list[int], bytes, bytes]] = [")
    for row in tensors():
        print(f"    {row!r},")
    print("]\n")
    for name, made in (("REQUESTS", requests()), ("RESPONSES", responses())):
        print(f"{name}: dict[str, bytes] = {{")
        for each, message in made:
            print(f"    {each!r}: {message.SerializeToString(deterministic=True)!r},")
        print("}\n")
    print(f"FEATURES = {features()!r}\n")
    print("SCHEMAS: dict[str, list[str]] = {")
    for name, fields in schemas():
        print(f"    {name!r}: {fields!r},")
    print("}")


if __name__ == "__main__":
    main()
