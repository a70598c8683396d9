"""Datatypes: TensorFlow's by number and by name, and V2's.

Source: TensorFlow `core/framework/types.proto` (DataType).
"""

from __future__ import annotations

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
