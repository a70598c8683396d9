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
from engines.backends.model_config import complete_from
from engines.backends.model_files import model_file

EXTRA = "torch"
# A thread for each instance: torch releases the interpreter's lock while it computes, and instances can share weights.
INSTANCES_SHARE_A_PROCESS = True


def allow_metal_fallback(platform: str = sys.platform) -> None:
    """Run operations that Metal lacks on the CPU, unless the user has set the variable: without it they fail requests.
    torch reads the variable once, when it is loaded (aten/src/ATen/mps/MPSFallback.mm).
    """
    if platform == "darwin":
        os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")


def create() -> Backend:
    allow_metal_fallback()
    from engines.backends.pytorch.backend import PyTorchBackend

    return PyTorchBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from a torch.export archive.

    Raises: EngineError if they are open and the model's file is another one.
    """
    allow_metal_fallback()
    from engines.backends.pytorch.models import NAMES, file_tensors

    complete_from(config, directory, lambda c, version: file_tensors(model_file(c, version, *NAMES), c.name))
