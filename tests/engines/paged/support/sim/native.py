"""The compiled side of a library: its tables in C, and how a dispatch enters it."""

from __future__ import annotations

import ctypes
import mmap
import re
import threading
from pathlib import Path

from tests.engines.paged.support.sim.signatures import MAX_BUFFERS


class ArgumentInfo(ctypes.Structure):
    """sim::ArgumentInfo (include/sim/entry.h)."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("form", ctypes.c_char),
        ("type", ctypes.c_char_p),
        ("bytes", ctypes.c_size_t),
        ("is_const", ctypes.c_bool),
    )


class _KernelInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("body", ctypes.c_void_p),
        ("num_arguments", ctypes.c_uint),
        ("arguments", ctypes.POINTER(ArgumentInfo)),
    )


class _ArrayInfo(ctypes.Structure):
    _fields_ = (("function", ctypes.c_char_p), ("bytes", ctypes.c_size_t))


class Launch(ctypes.Structure):
    """sim::Launch (include/sim/fibers.h)."""

    _fields_ = (
        ("buffers", ctypes.c_void_p * MAX_BUFFERS),
        ("grid", ctypes.c_uint * 3),
        ("group", ctypes.c_uint * 3),
        ("reversed", ctypes.c_int),
        ("poison", ctypes.c_int),
        ("stacks", ctypes.c_void_p),
        ("stack_bytes", ctypes.c_size_t),
        ("guard_page_bytes", ctypes.c_size_t),
    )


class _Stacks:
    """Stacks of the fibers, one per thread of the largest group, separated by guard pages that fault when touched."""

    NUM, BYTES = 1024, 256 * 1024

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        self._region = mmap.mmap(-1, self.NUM * (self.BYTES + page), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._region))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for i in range(self.NUM):
            protect(self.address + i * (self.BYTES + page), page, 0)


_lock = threading.Lock()  # one dispatch at a time in the whole process, since all share the stacks
_stacks: _Stacks | None = None


class NativeLibrary:
    """A shared library that build.py has made."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.sim_kernel.restype = ctypes.POINTER(_KernelInfo)
        self._library.sim_launch.restype = ctypes.c_bool
        self._library.sim_launch.argtypes = (ctypes.c_uint, ctypes.POINTER(Launch), ctypes.c_char_p, ctypes.c_size_t)
        self._library.sim_threadgroup_arrays.restype = ctypes.c_size_t
        self._library.sim_threadgroup_array.restype = ctypes.POINTER(_ArrayInfo)
        self._library.sim_threadgroup_array.argtypes = (ctypes.c_size_t,)

    def arguments(self, kernel: int) -> list[ArgumentInfo]:
        info = self._library.sim_kernel(kernel).contents
        return [info.arguments[i] for i in range(info.num_arguments)]

    def threadgroup_bytes(self) -> dict[str, int]:
        """The size of each function's threadgroup arrays; for a template the largest of its instantiations."""
        sizes: dict[tuple[str, str], int] = {}
        for i in range(self._library.sim_threadgroup_arrays()):
            array = self._library.sim_threadgroup_array(i).contents
            # "static const char* kernel(float*)::sim_declared_name::where() [with ...]"
            found = re.search(r"(\w+)(?:<.*>)?\(.*\)::sim_declared_(\w+)::where", array.function.decode())
            assert found is not None, array.function
            size = (array.bytes + 15) // 16 * 16
            sizes[found[1], found[2]] = max(sizes.get((found[1], found[2]), 0), size)
        by_function: dict[str, int] = {}
        for (function, _), size in sizes.items():
            by_function[function] = by_function.get(function, 0) + size
        return by_function

    def launch(self, kernel: int, launch: Launch) -> None:
        """Run one dispatch. Raises RuntimeError with the errors of its threads."""
        global _stacks
        message = ctypes.create_string_buffer(1024)
        with _lock:
            _stacks = _stacks or _Stacks()
            launch.stacks, launch.stack_bytes, launch.guard_page_bytes = _stacks.address, _Stacks.BYTES, mmap.PAGESIZE
            ran = self._library.sim_launch(kernel, ctypes.byref(launch), message, len(message))
        if not ran:
            raise RuntimeError(message.value.decode())
