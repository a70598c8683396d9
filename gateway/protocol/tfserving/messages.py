"""The messages of TF Serving's gRPC as classes, with the fields that V2 has a use for; nothing is loaded before the
first is asked for.

Field numbers are those of TensorFlow's and TF Serving's public .proto files. Enums are int32 here, and the members of
a oneof plain fields: on the wire they are the same.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from gateway.protocol.protobuf import Message, MessageClass

if TYPE_CHECKING:
    from google.protobuf.descriptor_pool import DescriptorPool

# A line each: the message, and its fields as name:number:type. `*` says repeated, `%` a map from string.
SCHEMA = """
google.protobuf.Int64Value value:1:int64
google.protobuf.Any type_url:1:string value:2:bytes
tensorflow.Dim size:1:int64
tensorflow.TensorShapeProto dim:2:*Dim unknown_rank:3:bool
tensorflow.TensorProto dtype:1:int32 tensor_shape:2:TensorShapeProto tensor_content:4:bytes half_val:13:*int32 \
float_val:5:*float double_val:6:*double int_val:7:*int32 string_val:8:*bytes int64_val:10:*int64 bool_val:11:*bool \
uint32_val:16:*uint32 uint64_val:17:*uint64
tensorflow.TensorInfo dtype:2:int32 tensor_shape:3:TensorShapeProto
tensorflow.SignatureDef inputs:1:%TensorInfo outputs:2:%TensorInfo method_name:3:string
tensorflow.BytesList value:1:*bytes
tensorflow.FloatList value:1:*float
tensorflow.Int64List value:1:*int64
tensorflow.Feature bytes_list:1:BytesList float_list:2:FloatList int64_list:3:Int64List
tensorflow.Features feature:1:%Feature
tensorflow.Example features:1:Features
tensorflow.serving.ModelSpec name:1:string version:2:Int64Value signature_name:3:string version_label:4:string
tensorflow.serving.PredictRequest model_spec:1:ModelSpec inputs:2:%TensorProto output_filter:3:*string
tensorflow.serving.PredictResponse outputs:1:%TensorProto model_spec:2:ModelSpec
tensorflow.serving.ExampleList examples:1:*Example
tensorflow.serving.Input example_list:1:ExampleList
tensorflow.serving.ClassificationRequest model_spec:1:ModelSpec input:2:Input
tensorflow.serving.Class label:1:string score:2:float
tensorflow.serving.Classifications classes:1:*Class
tensorflow.serving.ClassificationResult classifications:1:*Classifications
tensorflow.serving.ClassificationResponse result:1:ClassificationResult model_spec:2:ModelSpec
tensorflow.serving.RegressionRequest model_spec:1:ModelSpec input:2:Input
tensorflow.serving.Regression value:1:float
tensorflow.serving.RegressionResult regressions:1:*Regression
tensorflow.serving.RegressionResponse result:1:RegressionResult model_spec:2:ModelSpec
tensorflow.serving.GetModelMetadataRequest model_spec:1:ModelSpec metadata_field:2:*string
tensorflow.serving.GetModelMetadataResponse model_spec:1:ModelSpec metadata:2:%Any
tensorflow.serving.SignatureDefMap signature_def:1:%SignatureDef
tensorflow.serving.GetModelStatusRequest model_spec:1:ModelSpec
tensorflow.serving.StatusProto error_code:1:int32 error_message:2:string
tensorflow.serving.ModelVersionStatus version:1:int64 state:2:int32 status:3:StatusProto
tensorflow.serving.GetModelStatusResponse model_version_status:1:*ModelVersionStatus
"""

_LABEL_OPTIONAL, _LABEL_REPEATED = 1, 3
_SCALARS = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12}
_SCALARS |= {"uint32": 13}
_MESSAGE = 11
_KEY, _VALUE = 1, 2  # the fields of a map's entry


@cache
def message(name: str) -> MessageClass:
    """The class of a message of SCHEMA, by its own name: PredictRequest.

    Raises: KeyError.
    """
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(_pool().FindMessageTypeByName(_full_names()[name]))


def parse(name: str, data: bytes) -> Message:
    """A message read from its serialised form.

    Raises: ValueError where it is malformed.
    """
    from google.protobuf.message import DecodeError

    made = message(name)()
    try:
        made.ParseFromString(data)
    except DecodeError:
        raise ValueError(f"the message is no {_full_names()[name]}") from None
    return made


@cache
def _full_names() -> dict[str, str]:
    names = [line.partition(" ")[0] for line in SCHEMA.split("\n") if line]
    return {name.rpartition(".")[2]: name for name in names}


@cache
def _pool() -> DescriptorPool:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool

    files: dict[str, Message] = {}
    for line in SCHEMA.split("\n"):
        if not line:
            continue
        name, *fields = line.split()
        package, _, own = name.rpartition(".")
        if package not in files:
            files[package] = FileDescriptorProto(
                name=f"{package}.proto",
                package=package,
                syntax="proto3",
                dependency=[f"{known}.proto" for known in files],
            )
        _describe(files[package].message_type.add(name=own), name, fields)
    made = DescriptorPool()
    for file in files.values():
        made.Add(file)
    return made


def _describe(described: Message, full_name: str, fields: list[str]) -> None:
    for field in fields:
        name, number, kind = field.split(":")
        made = described.field.add(name=name, number=int(number))
        made.label = _LABEL_REPEATED if kind[0] in "*%" else _LABEL_OPTIONAL
        if kind[0] != "%":
            _set_type(made, kind.lstrip("*"))
            continue
        entry = described.nested_type.add(name="".join(map(str.title, name.split("_"))) + "Entry")
        entry.options.map_entry = True
        _set_type(entry.field.add(name="key", number=_KEY, label=_LABEL_OPTIONAL), "string")
        _set_type(entry.field.add(name="value", number=_VALUE, label=_LABEL_OPTIONAL), kind[1:])
        made.type, made.type_name = _MESSAGE, f".{full_name}.{entry.name}"


def _set_type(field: Message, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _MESSAGE, f".{_full_names()[kind]}"


# By the number of tensorflow.DataType; those that V2 has no word for keep TensorFlow's.
_BY_NUMBER: tuple[str, ...] = (
    *("DT_INVALID", "FP32", "FP64", "INT32", "UINT8", "INT16", "INT8", "BYTES", "DT_COMPLEX64", "INT64", "BOOL"),
    *("DT_QINT8", "DT_QUINT8", "DT_QINT32", "BF16", "DT_QINT16", "DT_QUINT16", "UINT16", "DT_COMPLEX128", "FP16"),
    *("DT_RESOURCE", "DT_VARIANT", "UINT32", "UINT64"),
)
_NUMBERS = {datatype: number for number, datatype in enumerate(_BY_NUMBER) if not datatype.startswith("DT_")}
_TENSORFLOWS = {"FP32": "FLOAT", "FP64": "DOUBLE", "FP16": "HALF", "BF16": "BFLOAT16", "BYTES": "STRING"}
_BY_NAME = {f"DT_{_TENSORFLOWS.get(datatype, datatype)}": datatype for datatype in _NUMBERS}


def of_number(number: int) -> str:
    """V2's word for a DataType; TensorFlow's, as DT_COMPLEX64, where V2 has none."""
    return _BY_NUMBER[number] if 0 <= number < len(_BY_NUMBER) else f"DT_{number}"


def of_name(name: str) -> str:
    """The same of DT_FLOAT."""
    return _BY_NAME.get(name, name)


def number_of(datatype: str) -> int:
    """The number of a V2 datatype.

    Raises: ValueError where TensorFlow has none.
    """
    number = _NUMBERS.get(datatype)
    if number is None:
        raise ValueError(f"its datatype is {datatype!r}, which TensorFlow does not have")
    return number
