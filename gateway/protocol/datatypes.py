"""The tensor datatypes of the V2 protocol and the size of one element of each.

Source: Triton's model configuration, "Datatypes"; BYTES has elements of any length.
"""

from __future__ import annotations

from math import prod

ELEMENT_BYTES: dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BF16": 2,
}
DATATYPES: tuple[str, ...] = (*ELEMENT_BYTES, "BYTES")

# The protocol's names by the number of inference.DataType, as model configurations have them.
CONFIG_DATATYPES: tuple[str, ...] = (
    *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16"),
)


def config_datatype(data_type: int) -> str:
    """The V2 name of a DataType of a model's configuration, by its number: FP32, BYTES; INVALID for 0."""
    return CONFIG_DATATYPES[data_type]


def data_bytes(datatype: str, shape: tuple[int, ...]) -> int | None:
    """The size of a tensor's data; None where only the elements tell it (BYTES) or the datatype is unknown."""
    element_bytes = ELEMENT_BYTES.get(datatype)
    return None if element_bytes is None else prod(shape) * element_bytes
