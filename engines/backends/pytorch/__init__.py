"""The pytorch backend: TorchScript (`model.pt`), torch.export and AOTInductor archives (`model.pt2`), and eager classes
(`model.py` with `model.safetensors` or a state dict), on the CPU, on CUDA and on Metal.

Source: Triton pytorch_backend, README (names, parameters) and `src/model.py` (eager classes).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.interfaces import Backend

EXTRA = "torch"
# A thread for each instance: torch lets go of the interpreter while it computes, and they can share weights.
INSTANCES_SHARE_A_PROCESS = True


def allow_metal_fallback(platform: str = sys.platform) -> None:
    """Have operations that Metal lacks run on the CPU, unless the user has decided otherwise. Without it such an
    operation fails each request. torch reads the variable once, when it is loaded (aten/src/ATen/mps/MPSFallback.mm).
    """
    if platform == "darwin":
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")


def create() -> Backend:
    allow_metal_fallback()
    from engines.backends.pytorch.backend import PyTorchBackend

    return PyTorchBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from a torch.export archive, which tells them.

    Raises: EngineError where they are open and the file does not tell them.
    """
    allow_metal_fallback()
    from engines.backends.pytorch.autocomplete import complete

    complete(config, directory)
