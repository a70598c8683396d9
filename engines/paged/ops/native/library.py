"""The kernel, compiled for one shape of attention and loaded."""

from __future__ import annotations

import ctypes
import functools
import platform
import sys
from pathlib import Path

import torch

from engines.paged.ops import cpp_compiler

_SOURCE = Path(__file__).with_name("attention.cpp")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LANES = 16
# What a compiler must know beside C++: clang 14 has no _Float16 on most processors.
_PROBES = {torch.float16: "float to_float(_Float16 value) { return (float)value; }"}
# All that this processor can: Apple's clang refused -march=native on arm64 for years.
_MACHINES = (("-march=native",), ("-mcpu=native",), ())


class Call(ctypes.Structure):
    """`struct Call` of attention.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "out")),
        *((name, ctypes.c_void_p) for name in ("tables", "rows", "firsts", "lengths")),
        ("row_stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_sequences", "table_stride", "block_size", "splits")),
        ("scale", ctypes.c_float),
        ("next", ctypes.c_int32),
    )


class Kernel:
    """Attention of decoding sequences for one shape; see attention.cpp."""

    def __init__(self, path: Path, kv_heads: int) -> None:
        self.kv_heads = kv_heads
        name, self._parallel = _parallel()
        self._attend = getattr(ctypes.CDLL(str(path)), name)
        self._attend.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._attend.restype = None

    def __call__(self, call: Call, threads: int) -> None:
        self._attend(ctypes.addressof(call), self._parallel, threads)


def load_kernel(heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> Kernel:
    """The kernel for so many query and key-value heads.

    Raises: ValueError for a shape that it is not made for; CompileError, NoCompilerError; OSError where it cannot be
    loaded.
    """
    if head_size % _LANES:
        raise ValueError(f"heads of {head_size} are no multiple of {_LANES}")
    if dtype not in _TYPES:
        raise ValueError(f"{dtype} is none of {', '.join(map(str, _TYPES))}")
    defined = (f"-DD={head_size}", f"-DG={kv_heads}", f"-DR={heads // kv_heads}", f"-DTYPE={_TYPES[dtype]}")
    language = ("-x", "c++", "-std=c++17", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-w")
    folder = cpp_compiler.cache_root() / "native"
    command, machine = cpp_compiler.suited(_PROBES.get(dtype, ""), _MACHINES)
    options = (*language, "-O3", *machine, *defined)
    return Kernel(cpp_compiler.build(_SOURCE.read_text(), options, folder, _processor(), command=command), kv_heads)


def _processor() -> str:
    """What -march=native depends on: a folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # a Mac, whose kernel's version names the chip: RELEASE_ARM64_T6020
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@functools.cache
def _parallel() -> tuple[str, ctypes.c_void_p | None]:
    """Which function of attention.cpp shares out its work, and by what: libdispatch on a Mac, elsewhere the OpenMP that
    torch has its threads of; None where torch has another."""
    if sys.platform == "darwin":
        return "attend_by_dispatch", ctypes.cast(ctypes.CDLL(None).dispatch_apply_f, ctypes.c_void_p)
    return "attend_by_openmp", _gomp_parallel()


def _gomp_parallel() -> ctypes.c_void_p | None:
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    for path in {line.split()[-1] for line in maps if "gomp" in line}:
        try:
            return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p)
        except (OSError, AttributeError):
            continue
    return None
