"""Triton's Python backend: unchanged `model.py` files with `triton_python_backend_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.model_files import last_version
from engines.backends.python.model import PythonBackend, complete_version

__all__ = ["INSTANCES_SHARE_A_PROCESS", "complete", "complete_version", "create"]

# A crash ends one instance, and instances run in parallel.
INSTANCES_SHARE_A_PROCESS = False


def create() -> PythonBackend:
    return PythonBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Complete the configuration by the model's highest version; `complete_version` takes a version.

    Raises: EngineError, and whatever the model raises.
    """
    complete_version(config, last_version(directory))
