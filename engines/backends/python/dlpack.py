"""Arrays from and to DLPack: numpy's own conversion lacks BF16, exports no read-only array and imports them as such.

Source: DLPack's `dlpack.h`, version 0.8 (DLManagedTensor).
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

import numpy as np

from engines.backends.python.errors import TritonModelException
from engines.core.datatypes import Array

CPU, CUDA_HOST = 1, 3
_NAME, _USED_NAME = b"dltensor", b"used_dltensor"
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6
_LETTERS = {_INT: "i", _UINT: "u", _FLOAT: "f", _BOOL: "b"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_python = ctypes.pythonapi
_python.PyCapsule_IsValid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)


def capsule(array: Array, *, is_bfloat16: bool) -> Any:
    """A capsule over an array's memory, which it holds; `is_bfloat16` means that its uint16 are BF16."""
    if not array.flags.writeable:
        array = _array_at(array.ctypes.data, array.dtype, array.shape, array)
    result = array.__dlpack__()
    if is_bfloat16:
        _Managed.from_address(_python.PyCapsule_GetPointer(result, _NAME)).tensor.code = _BFLOAT
    return result


def _array_at(address: int, dtype: np.dtype[Any], shape: tuple[int, ...], owner: Any) -> Array:
    """A writable array over memory that `owner` holds."""
    size = prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner  # lives as long as the array
    return np.frombuffer(memory, dtype).reshape(shape)


class _Taken:
    """The tensor of a consumed capsule."""

    def __init__(self, capsule: Any) -> None:
        self.managed = _Managed.from_address(_python.PyCapsule_GetPointer(capsule, _NAME))
        _python.PyCapsule_SetName(capsule, _USED_NAME)

    def __del__(self) -> None:
        if self.managed.deleter:
            self.managed.deleter(ctypes.pointer(self.managed))


def array(source: Any) -> tuple[Array, bool]:
    """An array over the memory of a capsule, or of an object with `__dlpack__`, and whether its elements are BF16.

    Raises: TritonModelException in Triton's words.
    """
    if not _python.PyCapsule_IsValid(source, _NAME):
        source = _capsule_of(source)
    taken = _Taken(source)
    tensor = taken.managed.tensor
    if tensor.device_type not in (CPU, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {tensor.device_type} is not support by Python backend.")
    shape = tuple(tensor.shape[axis] for axis in range(tensor.ndim))
    if tensor.strides and not _is_in_order(shape, [tensor.strides[axis] for axis in range(tensor.ndim)]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    is_bfloat16 = tensor.code == _BFLOAT
    if tensor.lanes != 1 or tensor.bits % 8 or not (is_bfloat16 or tensor.code in _LETTERS):
        raise TritonModelException("DLPack data type is not supported.")
    dtype = np.dtype("<u2" if is_bfloat16 else f"{_LETTERS[tensor.code]}{tensor.bits // 8}")
    return _array_at((tensor.data or 0) + tensor.byte_offset, dtype, shape, taken), is_bfloat16


def _capsule_of(source: Any) -> Any:
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(
            "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
            "`__dlpack_device__` attributes"
        )
    device, _ = source.__dlpack_device__()
    if device not in (CPU, CUDA_HOST) and hasattr(source, "cpu"):
        source = source.cpu()
    return source.__dlpack__()


def _is_in_order(shape: tuple[int, ...], strides: list[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True
