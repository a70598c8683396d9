"""The onnxruntime backend: `model.onnx` on the CPU, on CUDA, and on a Mac by the CoreML execution provider.

Source: Triton onnxruntime_backend, README and `src/onnxruntime.cc` (options, completion, what a model is checked for).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.interfaces import Backend

EXTRA = "onnx"
# A thread for each instance: onnxruntime lets go of the interpreter while it computes.
INSTANCES_SHARE_A_PROCESS = True


def create() -> Backend:
    from engines.backends.onnxruntime.backend import OnnxRuntimeBackend

    return OnnxRuntimeBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from the model. `options` are --backend-config of this backend.

    Raises: EngineError.
    """
    from engines.backends.onnxruntime.autocomplete import complete

    complete(config, directory, options or {})
