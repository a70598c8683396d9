"""`compile_shader` and what it returns, with torch's calling rules.

Source: torch/csrc/mps/Module.cpp, aten/src/ATen/native/mps/OperationUtils.mm (MetalKernelFunction).
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tests.engines.paged.support.sim.build import build
from tests.engines.paged.support.sim.lint import check_text
from tests.engines.paged.support.sim.native import ArgumentInfo, Launch, NativeLibrary
from tests.engines.paged.support.sim.signatures import MAX_BUFFERS, KernelSignature, read_signatures

SIMD_WIDTH = 32
MAX_SET_BYTES = 4096  # the limit of Metal's setBytes
THREADGROUP_BYTES = 32768

_SCALAR_CASTS: dict[str, str] = {
    "fp16": "float16", "bf16": "bfloat16", "int32": "int32", "int16": "int16", "int8": "int8", "uint8": "uint8",
}  # fmt: skip
# The tensors that a pointer to such elements may be bound to. torch passes unsigned numbers as signed ones.
_TENSOR_TYPES: dict[str, tuple[torch.dtype, ...]] = {
    "bool": (torch.bool, torch.uint8),
    "int8": (torch.int8, torch.bool),
    "uint8": (torch.uint8, torch.int8, torch.bool),
    "int16": (torch.int16,),
    "uint16": (torch.int16, torch.uint16),
    "int32": (torch.int32,),
    "uint32": (torch.int32, torch.uint32),
    "int64": (torch.int64,),
    "uint64": (torch.int64, torch.uint64),
    "float32": (torch.float32,),
    "float16": (torch.float16,),
    "bfloat16": (torch.bfloat16,),
}


def _pack(values: Sequence[int | float], type_name: str) -> bytes:
    """Numbers as the bytes that torch would pass to setBytes."""
    if type_name == "float32":
        return struct.pack(f"<{len(values)}f", *values)
    if type_name in ("float16", "bfloat16"):
        tensor = torch.tensor([float(value) for value in values], dtype=torch.float32).to(getattr(torch, type_name))
        return bytes(tensor.view(torch.uint8).tolist())
    size = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1}[type_name]
    return b"".join(struct.pack("<Q", int(value) & (2**64 - 1))[:size] for value in values)


class MetalKernel:
    """One function of a library, called as torch's: `kernel(*args, threads=, group_size=, arg_casts=)`."""

    def __init__(self, native: NativeLibrary, index: int, signature: KernelSignature, threadgroup_bytes: int) -> None:
        self._native, self._index, self._signature = native, index, signature
        self._arguments = {info.kind: info for info in native.arguments(index) if info.kind < MAX_BUFFERS}
        self._threadgroup_bytes = threadgroup_bytes

    @property
    def max_threads_per_threadgroup(self) -> int:
        return self._signature.max_threads

    @property
    def thread_execution_width(self) -> int:
        return SIMD_WIDTH

    @property
    def static_thread_group_memory_length(self) -> int:
        return self._threadgroup_bytes

    def __call__(
        self,
        *args: Any,
        threads: int | Sequence[int] | None = None,
        group_size: int | Sequence[int] | None = None,
        arg_casts: str | Mapping[int, str] | None = None,
        error_buf_idx: int | None = None,
    ) -> None:
        launch = Launch()
        kept: list[Any] = []  # keeps the buffers' memory alive until the launch has ended
        total = _sizes(threads, "threads")
        for index, arg in enumerate(args):
            if isinstance(arg, Tensor):
                launch.buffers[index] = self._tensor_address(index, arg)
                total = total or (arg.numel(),)
            else:
                data = ctypes.create_string_buffer(self._bytes_of(index, arg, arg_casts))
                kept.append(data)
                launch.buffers[index] = ctypes.addressof(data)
        if missing := sorted(set(self._arguments) - set(range(len(args)))):
            raise RuntimeError(f"{self._signature.name}: nothing is bound to buffer {missing[0]}")
        if total is None:
            raise RuntimeError("Number of threads is undefined or has wrong dimension")
        group = self._group(total, _sizes(group_size, "group_size"))
        launch.grid[:] = [*total, 1, 1][:3]
        launch.group[:] = [*group, 1, 1][:3]
        launch.reversed = os.environ.get("POINTSMAN_SIM_LANES") == "reversed"
        launch.poison = os.environ.get("POINTSMAN_SIM_MEMORY") != "zero"
        if 0 in total:
            return
        try:
            self._native.launch(self._index, launch)
        except RuntimeError as error:
            raise RuntimeError(f"{self._signature.name}: {error}") from None
        del kept

    def _group(self, total: tuple[int, ...], group: tuple[int, ...] | None) -> tuple[int, ...]:
        """Threads of a group, by torch's defaults."""
        most = self.max_threads_per_threadgroup
        if group is None:
            return (max(1, min(total[0], most)),) if len(total) == 1 else (most, 1, 1)[: len(total)]
        if len(group) != len(total):
            raise RuntimeError("Expected threads and group_size to have the same number of dimensions")
        size = 1
        for number in group:
            size *= number
        if size > most:
            raise ValueError(f"Threadgroup size exceeds {most} limit")
        if size == 0:
            raise ValueError("Threadgroup size is 0")
        return group

    def _info(self, index: int) -> ArgumentInfo:
        if index not in self._arguments:
            raise RuntimeError(f"{self._signature.name} has no buffer {index}, but an argument for it was given")
        return self._arguments[index]

    def _tensor_address(self, index: int, tensor: Tensor) -> int | None:
        info, name = self._info(index), self._signature.name
        if tensor.device.type != "cpu":
            raise RuntimeError(f"{name}: argument {index} is on {tensor.device}, the simulation computes on the CPU")
        if not tensor.is_contiguous():
            raise RuntimeError(f"{name}: argument {index} is not contiguous, and a kernel is told no strides")
        if info.form == b"r" and tensor.numel() * tensor.element_size() < info.bytes:
            raise RuntimeError(f"{name}: argument {index} has fewer than the {info.bytes} bytes that are read")
        expected = info.type.decode()
        if expected in _TENSOR_TYPES and tensor.dtype not in _TENSOR_TYPES[expected]:
            raise RuntimeError(f"{name}: argument {index} is a tensor of {tensor.dtype}, the kernel reads {expected}")
        address = tensor.data_ptr()
        return address if address else None

    def _bytes_of(self, index: int, arg: Any, arg_casts: str | Mapping[int, str] | None) -> bytes:
        """A number or a list of numbers in torch's layout: int64 and float32 without a cast."""
        values: Sequence[Any] = arg if isinstance(arg, list | tuple) else (arg,)
        if not values:
            raise RuntimeError("Empty list/tuple can not be an argument to metal kernel")
        if isinstance(values[0], Tensor):
            raise RuntimeError("lists of tensors are not simulated: their residency on the GPU is not certain")
        if isinstance(values[0], int):
            if not all(isinstance(value, int) for value in values):
                raise RuntimeError("Unable to cast Python instance to C++ type: a list of ints holds something else")
            type_name = "int64"
        elif isinstance(values[0], float):
            type_name = "float32"
        else:
            raise RuntimeError("Unsupported argument type")
        if arg_casts is not None and not isinstance(arg_casts, str | Mapping):
            raise RuntimeError(f"Unexpected caster arg type {type(arg_casts).__name__}")
        cast = arg_casts if isinstance(arg_casts, str) else (arg_casts or {}).get(index)
        if cast is not None:
            if cast not in _SCALAR_CASTS:
                raise RuntimeError(f"Unsupported cast instruction {cast}")
            type_name = _SCALAR_CASTS[cast]
        data = _pack(values, type_name)
        if len(data) > MAX_SET_BYTES:
            raise RuntimeError(f"{self._signature.name}: argument {index} has {len(data)} bytes; setBytes takes 4096")
        self._check_number(index, type_name, len(data), is_list=isinstance(arg, list | tuple))
        return data

    def _check_number(self, index: int, given: str, num_bytes: int, is_list: bool) -> None:
        """Check a number's type, since Metal reads any bytes. An integer may be read as a narrower one: the low bytes
        come first."""
        info, name = self._info(index), self._signature.name
        expected, size = info.type.decode(), {"int64": 8, "int32": 4, "int16": 2, "float32": 4}.get(given, 0)
        if expected in ("other", "void"):
            same = True
        elif "float" in expected or "float" in given:
            same = expected == given
        else:
            same = (
                expected == given or (info.bytes <= size and not is_list) or expected.lstrip("u") == given.lstrip("u")
            )
        if not same:
            raise RuntimeError(f"{name}: argument {index} is handed over as {given}, the kernel reads {expected}")
        if info.form == b"r" and num_bytes < info.bytes:
            raise RuntimeError(f"{name}: argument {index} has {num_bytes} bytes, the kernel reads {info.bytes}")


def _sizes(value: int | Sequence[int] | None, what: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 0 < len(sizes) < 4:
        raise RuntimeError(f"Expected 1 to 3 numbers in {what}, got {len(sizes)}")
    if any(size < 0 for size in sizes):
        raise RuntimeError(f"Unable to cast Python instance to C++ type: {what} is negative")
    return sizes


class ShaderLibrary:
    """A compiled source. Each access to a kernel by name makes a new function object, as in torch."""

    def __init__(self, source: str) -> None:
        check_text(source)
        self._signatures = {signature.name: signature for signature in read_signatures(source)}
        entries = ", ".join(_entry(signature) for signature in self._signatures.values())
        sanitize = os.environ.get("POINTSMAN_SIM_SANITIZE") == "1"
        self._native = NativeLibrary(build(f"{source}\nSIM_KERNELS({entries})\n", sanitize))
        self._threadgroup_bytes = self._native.threadgroup_bytes()

    def __getattr__(self, name: str) -> MetalKernel:
        if name.startswith("__") or name not in self._signatures:
            raise RuntimeError(f"Failed to create function state object for: {name}")
        signature = self._signatures[name]
        used = self._threadgroup_bytes.get(signature.function.split("<")[0], 0)
        if used > THREADGROUP_BYTES:
            raise RuntimeError(
                f"Failed to created pipeline state object, error: Threadgroup memory size ({used}) exceeds the maximum "
                f"threadgroup memory allowed ({THREADGROUP_BYTES})"
            )
        return MetalKernel(self._native, list(self._signatures).index(name), signature, used)

    def __dir__(self) -> list[str]:
        return list(self._signatures)


def _entry(signature: KernelSignature) -> str:
    """A kernel's entry in the table that the C++ code builds (include/sim/entry.h)."""
    kinds = ", ".join(str(a) if isinstance(a, int) else f"sim::{a}" for a in signature.arguments)
    function = signature.function
    return f'sim::Entry<decltype(&{function}), &{function}, {kinds}>::info("{signature.name}")'


def compile_shader(source: str) -> ShaderLibrary:
    """Compile a Metal source for this machine. Raises SyntaxError where Metal's compiler, or this simulation, refuses
    it."""
    return ShaderLibrary(source)
