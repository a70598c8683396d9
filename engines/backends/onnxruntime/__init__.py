"""The onnxruntime backend: `model.onnx` on the CPU, on CUDA, and on a Mac by the CoreML execution provider.

Source: Triton onnxruntime_backend, README and `src/onnxruntime.cc` (options, completion, what a model is checked for).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.interfaces import Backend
from engines.backends.model_config import complete_from, default_max_batch_size

EXTRA = "onnx"
# A thread for each instance: onnxruntime releases the interpreter's lock while it computes.
INSTANCES_SHARE_A_PROCESS = True


def create() -> Backend:
    from engines.backends.onnxruntime.backend import OnnxRuntimeBackend

    return OnnxRuntimeBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from the model. Raises: EngineError."""
    from engines.backends.onnxruntime.sessions import file_tensors, onnx_file

    default = default_max_batch_size(options or {})
    complete_from(config, directory, lambda config, version: file_tensors(onnx_file(config, version), default))
