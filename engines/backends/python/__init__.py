"""Triton's Python backend: unchanged `model.py` files with `triton_python_backend_utils`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.model_files import last_version
from engines.backends.python.model import PythonBackend, complete_version

__all__ = ["INSTANCES_SHARE_A_PROCESS", "complete", "complete_version", "create"]

# So that a crash takes one instance along, and instances run in parallel.
INSTANCES_SHARE_A_PROCESS = False


def create() -> PythonBackend:
    return PythonBackend()


def complete(config: Any, directory: Path, options: Mapping[str, str] | None = None) -> None:
    """Have the model's highest version say what its configuration leaves open; `complete_version` asks another one.

    Raises: EngineError, and whatever the model raises.
    """
    complete_version(config, last_version(directory))
