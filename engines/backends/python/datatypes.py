"""Triton's datatypes by number and by name, and numpy's; BYTES in their serialised form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from engines.backends.interfaces import Array

BF16 = "BF16"
TRITON_BF16 = 14

# In the order of model_config.proto, from 1.
_IN_ORDER: tuple[Any, ...] = (
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    np.object_,
)
_NAMES = ("BOOL", *(f"{family}{bits}" for family in ("UINT", "INT") for bits in (8, 16, 32, 64)))
_NAMES += ("FP16", "FP32", "FP64", "STRING")

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    f"TYPE_{name}": kind for name, kind in zip(_NAMES, _IN_ORDER, strict=True)
} | {"TYPE_BOOL": bool}

_NUMBERS = {np.dtype(kind): number for number, kind in enumerate(_IN_ORDER, 1)}
_LENGTH = struct.Struct("<I")


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a name of model_config.proto, `TYPE_FP32`. Raises: KeyError."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a number of model_config.proto; None where there is none."""
    return _IN_ORDER[data_type - 1] if 1 <= data_type <= len(_IN_ORDER) else None


def numpy_to_triton_type(data_type: Any) -> Any:
    """The number of a numpy type in model_config.proto; None where there is none."""
    dtype = np.dtype(data_type)
    return _NUMBERS[np.dtype(object)] if dtype.kind == "S" else _NUMBERS.get(dtype)


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """The elements in row-major order, each behind its length; what is no `bytes` goes as text.

    Returns: bytes; an empty tuple where there are no elements, None where the dtype is another.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    pieces = []
    for element in input_tensor.ravel().tolist():
        data = element if isinstance(element, bytes) else str(element).encode()
        pieces += [_LENGTH.pack(len(data)), data]
    return b"".join(pieces)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """The elements of `serialize_byte_tensor`, as a 1-D array of `bytes`.

    Raises: struct.error where it is cut short.
    """
    elements, position = [], 0
    while position < len(encoded_tensor):
        (length,) = _LENGTH.unpack_from(encoded_tensor, position)
        position += _LENGTH.size
        elements.append(bytes(encoded_tensor[position : position + length]))
        position += length
    array = np.empty(len(elements), object)
    array[:] = elements
    return array
