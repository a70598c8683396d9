"""Packages as CoreML loads them: compiled once, kept by their content, and loaded from there by every instance."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.backends.interfaces import Array
from engines.core.errors import internal

_log = logging.getLogger(__name__)


def compile_once(ct: Any, path: Path, model_digest: str, directory: Path) -> Path:
    """The compiled form (`.mlmodelc`) of a package: itself where it is one, else a copy in `directory`.

    Raises: EngineError where it cannot be compiled.
    """
    if path.suffix == ".mlmodelc":
        return path
    kept = directory / f"{model_digest}.mlmodelc"
    if kept.exists():
        return kept
    directory.mkdir(parents=True, exist_ok=True)
    # Two processes may compile at once: each by itself, and whoever is first is kept.
    own = directory / f"{model_digest}.{os.getpid()}.mlmodelc"
    try:
        ct.models.utils.compile_model(str(path), destination_path=str(own))
        own.rename(kept)
    except OSError:
        if not kept.exists():
            raise
        shutil.rmtree(own, ignore_errors=True)
    except Exception as error:
        raise internal(f"CoreML cannot compile '{path}': {error}") from error
    _log.info("compiled '%s' into '%s'", path, kept)
    return kept


class CompiledModel:
    """A compiled model, loaded for some compute units."""

    def __init__(self, ct: Any, compiled: Path, units: str) -> None:
        """Raises: EngineError."""
        try:
            self._model = ct.models.CompiledMLModel(str(compiled), getattr(ct.ComputeUnit, units))
        except Exception as error:
            raise internal(f"CoreML cannot load '{compiled}' for {units}: {error}") from error

    def predict(self, batch: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Run it once for each of the inputs; several go to CoreML as one batch. Raises: what CoreML does."""
        if len(batch) == 1:
            return [self._model.predict(dict(batch[0]))]
        answers: list[dict[str, Array]] = self._model.predict([dict(inputs) for inputs in batch])
        return answers
