"""What is kept between runs: placements and compiled models, by a model's content and by the machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from engines.backends.coreml.placement import UNITS, Placement, Trial

_log = logging.getLogger(__name__)


def digest(path: Path) -> str:
    """What a package holds, as 32 hexadecimal digits: names and contents of all of its files."""
    whole = hashlib.sha256()
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix() if file != path else ""
        with file.open("rb") as content:
            whole.update(f"{name}\0{hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()[:32]


def machine() -> str:
    """This system's build and chip: an answer holds for both together."""

    def ask(key: str) -> str:
        result = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
        return result.stdout.strip()

    if sys.platform != "darwin":
        return f"{platform.system()} {platform.release()} {platform.machine()}"
    return f"{ask('kern.osversion')} {ask('machdep.cpu.brand_string')}"


def cache_directory() -> Path:
    """Where answers and compiled models are kept: POINTSMAN_CACHE, or where this system keeps caches."""
    if configured := os.environ.get("POINTSMAN_CACHE"):
        return Path(configured) / "coreml"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pointsman" / "coreml"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "coreml"


class DiskCache:
    """Placements by model and machine, one JSON file each. A file that cannot be read or written is as good as none."""

    def __init__(self, directory: Path, machine: str) -> None:
        self._directory = directory
        self._machine = machine

    def _path(self, model_digest: str) -> Path:
        here = hashlib.sha256(self._machine.encode()).hexdigest()[:8]
        return self._directory / f"{model_digest}-{here}.json"

    def recall(self, model_digest: str) -> Placement | None:
        try:
            told = json.loads(self._path(model_digest).read_bytes())
            if told["machine"] != self._machine or told["units"] not in UNITS:
                return None
            return Placement(told["units"], tuple(Trial(**trial) for trial in told["trials"]), True)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, model_digest: str, placement: Placement) -> None:
        path = self._path(model_digest)
        told = {"machine": self._machine, "units": placement.units, "trials": [asdict(t) for t in placement.trials]}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(told, indent=1))
            partial.replace(path)
        except OSError as error:
            _log.warning("the placement is not remembered: %s", error)
