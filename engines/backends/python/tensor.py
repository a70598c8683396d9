"""`Tensor`: a name and an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from engines.backends.interfaces import Array
from engines.backends.python import dlpack
from engines.backends.python.datatypes import BF16, TRITON_BF16, numpy_to_triton_type
from engines.backends.python.errors import TritonModelException


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
            raise TritonModelException("Tensor name cannot be an empty string.")
        if array.dtype.num not in _SUPPORTED or not array.dtype.isnative:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._array = array
        self._datatype: str | None = None  # where the array does not tell

    @classmethod
    def _of(cls, name: str, array: Array, datatype: str | None = None) -> Tensor:
        """A tensor that is known to be one."""
        made = cls.__new__(cls)
        made._name = name
        made._array = array
        made._datatype = BF16 if datatype == BF16 else None
        return made

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        """Raises: TritonModelException for BF16, of which numpy knows nothing."""
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
        """A tensor over the memory of a DLPack capsule, or of an object that gives one; what is on a GPU is copied.

        Raises: TritonModelException.
        """
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        array, is_bfloat16 = dlpack.array(source)
        return Tensor._of(name, array, BF16 if is_bfloat16 else None)

    def __repr__(self) -> str:
        return f"<Tensor {self._name} {self._array.dtype}{list(self._array.shape)}>"


_SUPPORTED = frozenset(np.dtype(code).num for code in "?bhilqBHILQefdOS")
