"""The reference's operations, and one of our own for processors: attention of decoding sequences, compiled when a
model is loaded. Torch's kernel is called once a sequence and layer, and is slow at one row; ours takes all rows of
a step in one call, and reads each key and value once."""

from __future__ import annotations

import logging

import torch

from engines.core.errors import unavailable
from engines.paged.ops.cpp_compiler import CompileError, NoCompilerError
from engines.paged.ops.native.decode import NativeDecode
from engines.paged.ops.native.library import load_kernel
from engines.paged.ops.native.self_check import check
from engines.paged.ops.reference import ReferenceOps

_log = logging.getLogger(__name__)


class NativeOps(ReferenceOps):
    """Operations on this processor. `is_required`: a kernel that cannot be had is an error; else torch's takes its
    place, and the log says why."""

    name = "native"

    def __init__(self, *, is_required: bool = False) -> None:
        super().__init__("cpu")
        self._is_required = is_required

    def prepare_attention(self, heads: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        """Raises: EngineError."""
        try:
            decode = NativeDecode(load_kernel(heads, kv_heads, head_size, dtype))
            check(decode, heads, kv_heads, head_size, dtype)
        except (CompileError, NoCompilerError, OSError, ValueError) as error:
            if self._is_required:
                raise unavailable(f"ops: 'native' cannot attend here: {error}") from error
            _log.info("decoding attends by torch, which is slower: %s", error)
            return
        self._attention.decoders[heads, kv_heads, head_size, dtype] = decode
