"""Which device an engine computes on, in which dtype, with how many threads."""

from __future__ import annotations

import logging
import os

import torch

from engines.core.errors import invalid, unavailable

_log = logging.getLogger(__name__)

_DEVICES = ("auto", "mps", "cuda", "cpu")
_DTYPES = ("auto", "float32", "float16", "bfloat16")


def choose_device(name: str) -> torch.device:
    """Of --device. Raises: EngineError where it is unknown, or not here.

    A virtual Mac says that it has MPS and gives no memory (actions/runner-images issue 9918): an allocation tells.
    """
    if name not in _DEVICES:
        raise invalid(f"device: '{name}' is none of {', '.join(_DEVICES)}")
    has_mps, has_cuda = torch.backends.mps.is_available(), torch.cuda.is_available()
    failure = mps_failure() if has_mps and name in ("auto", "mps") else ""
    if name == "auto":
        if failure:
            _log.warning("MPS is there but cannot be used, the processor computes: %s", failure)
        name = "mps" if has_mps and not failure else "cuda" if has_cuda else "cpu"
    if (name == "mps" and not has_mps) or (name == "cuda" and not has_cuda):
        raise unavailable(f"device: this machine's torch {torch.__version__} has no {name}; 'auto' takes what there is")
    if name == "mps" and failure:
        raise unavailable(f"device: mps is there but cannot be used: {failure}; 'auto' takes what there is")
    return torch.device(name)


def mps_failure() -> str:
    """Why a few bytes cannot be had on MPS, and read back; "" where they can."""
    try:
        value = torch.ones(1, device="mps").item()
    except RuntimeError as error:  # "MPS backend out of memory (... other allocations: 0 bytes ...)"
        return str(error).partition("\n")[0]
    return "" if value == 1.0 else f"a one that was written is read as {value:g}"


def choose_dtype(name: str, stored: str, device: torch.device) -> str:
    """Of --dtype: `stored`, the folder's own, unless the device is slow at it.

    Raises: EngineError where it is unknown.
    """
    if name not in _DTYPES:
        raise invalid(f"dtype: '{name}' is none of {', '.join(_DTYPES)}")
    if name != "auto":
        return name
    if stored == "float32" or device.type != "cpu":
        return stored
    # A processor without instructions for bfloat16 converts each number on its way.
    return "bfloat16" if _has_fast_bfloat16() else "float32"


def use_threads(count: int | None) -> None:
    """Have torch's operations on the processor use so many threads; None: the cores this process may use."""
    if count is None:
        count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(count)


def _has_fast_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
