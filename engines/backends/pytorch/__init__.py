"""The pytorch backend: TorchScript (`model.pt`), torch.export and AOTInductor archives (`model.pt2`), and eager classes
(`model.py` with `model.safetensors` or a state dict), on the CPU, on CUDA and on Metal.

Source: Triton pytorch_backend, README (names, parameters) and `src/model.py` (eager classes).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.contract import Backend

EXTRA = "torch"
# A thread for each instance: torch lets go of the interpreter while it computes, and they can share weights.
INSTANCES_SHARE_A_PROCESS = True


def create() -> Backend:
    from engines.backends.pytorch.backend import PyTorchBackend

    return PyTorchBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from a torch.export archive, which tells them.

    Raises: EngineError where they are open and the file does not tell them.
    """
    from engines.backends.pytorch.completion import complete

    complete(config, directory)
