"""The messages of TF Serving's gRPC as classes, with the fields that V2 has a use for; and its datatypes.

Field numbers are those of TensorFlow's and TF Serving's public .proto files.
"""

from __future__ import annotations

from gateway.protocol.protobuf.text_schema import TextSchema

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
_schema = TextSchema(SCHEMA)
message, parse = _schema.message, _schema.parse

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
    """The number of a V2 datatype. Raises: ValueError where TensorFlow has none."""
    number = _NUMBERS.get(datatype)
    if number is None:
        raise ValueError(f"its datatype is {datatype!r}, which TensorFlow does not have")
    return number
