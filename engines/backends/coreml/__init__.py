"""The coreml backend: `.mlpackage` and `.mlmodelc` on a Mac, by coremltools.

CoreML requires fixed shapes: a version's directory holds one package with a fixed shape or with enumerated ones, or
several packages, one for each batch size. Batches are split and padded to them. Which of the CPU, the GPU and the
Neural Engine are used is measured, unless the configuration names them.

Every function that needs a Mac takes the coremltools module as an argument, so that the rest can be tested anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.interfaces import Backend
from engines.backends.model_config import complete_from

EXTRA = "coreml"
# CoreML serialises predictions of one loaded model; each instance loads its own, from one compiled copy.
INSTANCES_SHARE_A_PROCESS = True


def create() -> Backend:
    from engines.backends.coreml.backend import CoreMLBackend

    return CoreMLBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Fill in inputs, outputs and max_batch_size from the packages. Raises: EngineError."""
    from engines.backends.coreml.packages import file_tensors

    complete_from(config, directory, file_tensors)
