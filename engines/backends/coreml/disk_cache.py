"""Placements and compiled models on disk, by the model's content and the machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.backends.coreml.placement import UNITS, Placement, Trial
from engines.core.datatypes import Array
from engines.core.errors import internal

_log = logging.getLogger(__name__)


def digest(path: Path) -> str:
    """The digest of a package in 32 hexadecimal digits: names and contents of all files."""
    total = hashlib.sha256()
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix() if file != path else ""
        with file.open("rb") as content:
            total.update(f"{name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:32]


def machine() -> str:
    """This system's build and chip: a placement holds for both together."""

    def sysctl(key: str) -> str:
        result = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
        return result.stdout.strip()

    if sys.platform != "darwin":
        return f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{sysctl('kern.osversion')} {sysctl('machdep.cpu.brand_string')}"


def cache_directory() -> Path:
    """The directory of placements and compiled models: POINTSMAN_CACHE, or the system's directory for caches."""
    if configured := os.environ.get("POINTSMAN_CACHE"):
        return Path(configured) / "coreml"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pointsman" / "coreml"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "coreml"


class DiskCache:
    """Placements by model and machine, one JSON file each. Files that cannot be read or written are ignored."""

    def __init__(self, directory: Path, machine: str) -> None:
        self._directory = directory
        self._machine = machine

    def _path(self, model_digest: str) -> Path:
        machine_digest = hashlib.sha256(self._machine.encode()).hexdigest()[:8]
        return self._directory / f"{model_digest}-{machine_digest}.json"

    def load(self, model_digest: str) -> Placement | None:
        try:
            stored = json.loads(self._path(model_digest).read_bytes())
            if stored["machine"] != self._machine or stored["units"] not in UNITS:
                return None
            return Placement(stored["units"], tuple(Trial(**trial) for trial in stored["trials"]), True)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, model_digest: str, placement: Placement) -> None:
        path = self._path(model_digest)
        stored = {"machine": self._machine, "units": placement.units, "trials": [asdict(t) for t in placement.trials]}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(stored, indent=1))
            partial.replace(path)
        except OSError as error:
            _log.warning("the placement is not stored: %s", error)


def compile_once(ct: Any, path: Path, model_digest: str, directory: Path) -> Path:
    """The compiled form (`.mlmodelc`) of a package: the package itself, or a copy in `directory`.

    Raises: EngineError if it cannot be compiled.
    """
    if path.suffix == ".mlmodelc":
        return path
    cached = directory / f"{model_digest}.mlmodelc"
    if cached.exists():
        return cached
    directory.mkdir(parents=True, exist_ok=True)
    # Two processes may compile at once: the first result stays.
    own = directory / f"{model_digest}.{os.getpid()}.mlmodelc"
    try:
        ct.models.utils.compile_model(str(path), destination_path=str(own))
        own.rename(cached)
    except OSError:
        if not cached.exists():
            raise
        shutil.rmtree(own, ignore_errors=True)
    except Exception as error:
        raise internal(f"CoreML cannot compile '{path}': {error}") from error
    _log.info("compiled '%s' into '%s'", path, cached)
    return cached


class CompiledModel:
    """A compiled model, loaded for compute units."""

    def __init__(self, ct: Any, compiled: Path, units: str) -> None:
        """Raises: EngineError."""
        try:
            self._model = ct.models.CompiledMLModel(str(compiled), getattr(ct.ComputeUnit, units))
        except Exception as error:
            raise internal(f"CoreML cannot load '{compiled}' for {units}: {error}") from error

    def predict(self, batch: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
        """Run the model once for each of the inputs; several go to CoreML as one batch. Raises: what CoreML raises."""
        if len(batch) == 1:
            return [self._model.predict(dict(batch[0]))]
        outputs: list[dict[str, Array]] = self._model.predict([dict(inputs) for inputs in batch])
        return outputs
