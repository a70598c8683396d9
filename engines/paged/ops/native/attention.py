"""`native`: the reference's operations, with our own compiled attention of decoding sequences on processors.

Torch's kernel is called once per sequence and layer, and is slow at one row; ours takes all rows of a step in one call,
and reads each key and value once.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.core.errors import unavailable
from engines.paged.ops import cpp_compiler
from engines.paged.ops.cpp_compiler import CompileError, NoCompilerError
from engines.paged.ops.reference import Ops
from engines.paged.ops.reference.attention import DecodingRow

_SOURCE = Path(__file__).with_name("attention.cpp")
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_LANES = 16
# Features that a compiler needs beside C++: clang 14 has no _Float16 on most processors.
_PROBES = {torch.float16: "float to_float(_Float16 value) { return (float)value; }"}
# All instructions of this processor: Apple's clang refused -march=native on arm64 for years.
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
    """The kernel for these query and key-value heads.

    Raises: ValueError for an unsupported shape; CompileError, NoCompilerError; OSError where it cannot be loaded.
    """
    if head_size % _LANES:
        raise ValueError(f"heads of {head_size} are no multiple of {_LANES}")
    if dtype not in _TYPES:
        raise ValueError(f"{dtype} is none of {', '.join(map(str, _TYPES))}")
    defined = (f"-DD={head_size}", f"-DG={kv_heads}", f"-DR={heads // kv_heads}", f"-DTYPE={_TYPES[dtype]}")
    language = ("-x", "c++", "-std=c++17", "-shared", "-fPIC", "-fno-exceptions", "-fno-rtti", "-w")
    folder = cpp_compiler.cache_root() / "native"
    command, machine = cpp_compiler.select_compiler(_PROBES.get(dtype, ""), _MACHINES)
    options = (*language, "-O3", *machine, *defined)
    return Kernel(cpp_compiler.build(_SOURCE.read_text(), options, folder, _processor(), command=command), kv_heads)


def _processor() -> str:
    """The input of -march=native: machines may share a cache folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # a Mac's kernel version names the chip: RELEASE_ARM64_T6020
        return f"{platform.machine()} {platform.processor()} {platform.version()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}))


@functools.cache
def _parallel() -> tuple[str, ctypes.c_void_p | None]:
    """The function of attention.cpp that distributes the work, and its runtime: libdispatch on a Mac, elsewhere torch's
    own OpenMP; None where torch uses another."""
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


@dataclass(frozen=True, slots=True)
class Decoding:
    """Sequences with one row each, the same for all layers.

    tables   [s, M] int32   block ids
    rows     [s] int32      of the batch
    firsts   [s] int32      the first visible token
    lengths  [s] int32      tokens in the cache
    """

    tables: Tensor
    rows: Tensor
    firsts: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, sequences: Sequence[DecodingRow]) -> Decoding:
        width = max(len(table) for _, table, _, _ in sequences)
        tables = [[*table, *[0] * (width - len(table))] for _, table, _, _ in sequences]
        columns = [[sequence[at] for sequence in sequences] for at in (0, 2, 3)]
        return cls(*(torch.tensor(each, dtype=torch.int32) for each in (tables, *columns)))


class NativeDecode:
    """Attends for all decoding rows of a step in one call per layer."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._call = Call()

    plan = staticmethod(Decoding.of)

    def __call__(self, q: Tensor, keys: Tensor, values: Tensor, plan: Decoding, scale: float, out: Tensor) -> None:
        """q [n, H, D], keys and values [blocks, S, G, D] -> the plan's rows of out [n, H, D], which is contiguous."""
        call, threads = self._call, torch.get_num_threads()
        call.queries, call.out = q.data_ptr(), out.data_ptr()
        call.keys, call.values = keys.data_ptr(), values.data_ptr()
        call.tables, call.rows = plan.tables.data_ptr(), plan.rows.data_ptr()
        call.firsts, call.lengths = plan.firsts.data_ptr(), plan.lengths.data_ptr()
        call.row_stride = q.stride(0)
        call.num_sequences, call.table_stride = plan.tables.shape
        call.block_size = keys.shape[1]
        # A sequence is one piece of work, unless there are too few for all threads.
        call.splits = 1 if call.num_sequences >= 2 * threads else self._kernel.kv_heads
        call.scale = scale
        self._kernel(call, threads)


# Largest difference from torch in float32: the result's rounding.
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
# More than one part of the cache, and no whole number of blocks.
_TOKENS, _BLOCK_SIZE, _NUM_BLOCKS = 300, 16, 24


def check_kernel(decode: NativeDecode, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
    """Compare the kernel with torch.

    Raises: CompileError.
    """
    noise = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=noise).to(dtype)

    keys, values = (random(_NUM_BLOCKS, _BLOCK_SIZE, kv_heads, head_size) for _ in range(2))
    q = random(1, heads, head_size)
    table = list(range(_NUM_BLOCKS - 1, _NUM_BLOCKS - 1 - -(-_TOKENS // _BLOCK_SIZE), -1))
    scale = head_size**-0.5
    out = torch.full_like(q, float("nan"))
    decode(q, keys, values, Decoding.of([(0, table, 0, _TOKENS)]), scale, out)
    seen, added = (each[table].flatten(0, 1)[:_TOKENS].transpose(0, 1).unsqueeze(0).float() for each in (keys, values))
    grouped = q.view(1, kv_heads, -1, head_size).float()
    expected = scaled_dot_product_attention(grouped, seen, added, scale=scale).view_as(out)
    error = float((out.float() - expected).abs().max())
    if not error <= _TOLERANCES[dtype]:  # nor NaN
        raise CompileError(f"it is {error:.2g} off what torch computes")


_log = logging.getLogger(__name__)


class NativeOps(Ops):
    """Operations on this processor. `is_required`: an unavailable kernel is an error; otherwise torch takes its place,
    and the log names the reason."""

    name = "native"

    def __init__(self, *, is_required: bool = False) -> None:
        super().__init__("cpu")
        self._is_required = is_required

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Raises: EngineError."""
        try:
            decode = NativeDecode(load_kernel(heads, kv_heads, head_size, dtype))
            check_kernel(decode, heads, kv_heads, head_size, dtype)
        except (CompileError, NoCompilerError, OSError, ValueError) as error:
            if self._is_required:
                raise unavailable(f"ops: 'native' cannot attend here: {error}") from error
            _log.info("decoding attends by torch, which is slower: %s", error)
            return
        self._attention.decoders[heads, kv_heads, head_size, dtype] = decode
