"""`Tensor`: a name and an array; Triton's datatypes by number and by name, and BYTES in their serialised form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from engines.backends.framework_values import strings
from engines.backends.python import dlpack
from engines.backends.python.errors import TritonModelException
from engines.core.datatypes import Array
from engines.ipc.arrays import encode_bytes

BF16 = "BF16"
TRITON_BF16 = 14

# In the order of model_config.proto, from 1.
_IN_ORDER: tuple[Any, ...] = (
    np.bool_,
    *(np.dtype(f"{kind}{size}").type for kind in "ui" for size in (1, 2, 4, 8)),
    *(np.float16, np.float32, np.float64, np.object_),
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
    """The numpy type of a number of model_config.proto; None if there is none."""
    return _IN_ORDER[data_type - 1] if 1 <= data_type <= len(_IN_ORDER) else None


def numpy_to_triton_type(data_type: Any) -> Any:
    """The number of a numpy type in model_config.proto; None if there is none."""
    dtype = np.dtype(data_type)
    return _NUMBERS[np.dtype(object)] if dtype.kind == "S" else _NUMBERS.get(dtype)


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """The elements in row-major order with length prefixes; elements other than `bytes` are written as text.

    Returns: bytes; an empty tuple without elements, None for another dtype.
    """
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype.kind not in "OS":
        return None
    return encode_bytes(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """The elements of `serialize_byte_tensor` as a 1-D array of `bytes`.

    Raises: struct.error if the data is too short.
    """
    elements, position = [], 0
    while position < len(encoded_tensor):
        (length,) = _LENGTH.unpack_from(encoded_tensor, position)
        position += _LENGTH.size
        elements.append(bytes(encoded_tensor[position : position + length]))
        position += length
    return strings(elements, (len(elements),))


class Tensor:
    """A tensor of a request or of a response. Data is on the CPU always; BYTES are arrays of `bytes` objects."""

    __slots__ = ("_array", "_datatype", "_name")

    def __init__(self, name: str, array: Array) -> None:
        if array.__class__ is not np.ndarray and not isinstance(array, np.ndarray):
            raise TypeError(
                "__init__(): incompatible constructor arguments. The following argument types are supported:\n"
                "    1. c_python_backend_utils.Tensor(arg0: str, arg1: numpy.ndarray)\n\n"
                f"Invoked with: {name!r}, {array!r}"
            )
        if not name:
            if not isinstance(name, str):
                raise TypeError(f"__init__(): incompatible constructor arguments: the name is a str, not {name!r}")
            raise TritonModelException("Tensor name cannot be an empty string.")
        if array.dtype.num not in _SUPPORTED or not array.dtype.isnative:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array
        self._datatype: str | None = None  # if the array's dtype differs

    @classmethod
    def _of(cls, name: str, array: Array, datatype: str | None = None) -> Tensor:
        """A tensor without the checks."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._array = array
        tensor._datatype = BF16 if datatype == BF16 else None
        return tensor

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        """Raises: TritonModelException for BF16, which numpy lacks."""
        if self._datatype is not None:
            raise TritonModelException(
                "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            )
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def triton_dtype(self) -> int:
        """The number of the datatype in model_config.proto and TRITONSERVER_DataType."""
        return TRITON_BF16 if self._datatype is not None else numpy_to_triton_type(self._array.dtype)

    def is_cpu(self) -> bool:
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule over the same memory. Raises: TritonModelException for BYTES."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None) -> Any:
        if self._array.dtype.hasobject or self._array.dtype.kind == "S":
            raise TritonModelException("DLPack does not have support for string tensors.")
        return dlpack.capsule(np.ascontiguousarray(self._array), is_bfloat16=self._datatype is not None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CPU, 0

    @staticmethod
    def from_dlpack(name: str, source: Any) -> Tensor:
        """A tensor over the memory of a DLPack capsule or of an object with one; data on a GPU is copied.

        Raises: TritonModelException.
        """
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, is_bfloat16 = dlpack.array(source)
        return Tensor._of(name, array, BF16 if is_bfloat16 else None)

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self._array.dtype}{list(self._array.shape)}>"


_SUPPORTED = frozenset(np.dtype(code).num for code in "?bhilqBHILQefdOS")
