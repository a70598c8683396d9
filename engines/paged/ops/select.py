"""Which operations an engine computes with."""

from __future__ import annotations

import logging
import os
import re
import subprocess

import torch

from engines.core.errors import invalid, unavailable
from engines.paged.ops.interface import Ops
from engines.paged.ops.native import NativeOps
from engines.paged.ops.reference import ReferenceOps

# An M1 has seven or eight.
_FEWEST_CORES = 8
FAST_MATH = "PYTORCH_MPS_FAST_MATH"
_NAMES = ("auto", "reference", "native", "metal")

_log = logging.getLogger(__name__)


def choose_ops(name: str, device: torch.device, dtype: torch.dtype, *, deterministic: bool = False) -> Ops:
    """Of --ops: `metal` on a Mac; on another processor `native`, which needs a compiler, and `reference` where there is
    none or on another device. On a Mac each kernel is tried before it is used; those that fail
    are computed by torch, with a warning.

    Raises: EngineError.
    """
    if name not in _NAMES:
        raise invalid(f"ops: '{name}' is none of {', '.join(_NAMES)}")
    if device.type == "mps":
        _use_safe_math()
    if name == "auto":
        if device.type == "cpu":
            return NativeOps()
        name = "metal" if device.type == "mps" else "reference"
    if name == "native":
        if device.type != "cpu":
            raise invalid("ops: 'native' computes on the processor: it needs device 'cpu'")
        return NativeOps(is_required=True)
    if name == "reference":
        return ReferenceOps(device)
    if name == "metal" and device.type != "mps":
        raise unavailable("ops: 'metal' needs an Apple GPU; 'auto' takes what there is")
    from engines.paged.ops.metal import MetalOps
    from engines.paged.ops.metal.self_check import checked
    from engines.paged.ops.metal.verdict import verdict_file

    ops = MetalOps(torch.mps.compile_shader, device, _gpu_cores(), is_deterministic=deterministic)
    return checked(ops, (dtype,), verdict=verdict_file(ops, (dtype,)))


def _use_safe_math() -> None:
    """Attention and sampling count on -inf and NaN, which fast math does away with. torch reads the variable once a
    process, when it first compiles a Metal source (MetalShaderLibrary::compileLibrary): any value but "0" is yes."""
    if os.environ.pop(FAST_MATH, "0") != "0":
        _log.warning("%s is ignored: the kernels count on infinities and NaN", FAST_MATH)


def _gpu_cores() -> int:
    """Of this Mac's GPU, where the system tells."""
    asked = ["ioreg", "-rc", "AGXAccelerator", "-d", "1"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return _FEWEST_CORES
    found = re.search(r'"gpu-core-count"\s*=\s*(\d+)', told)
    return int(found[1]) if found else _FEWEST_CORES
