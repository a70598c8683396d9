"""On what figures were made: they mean little without it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The machine, its chip, its memory, its system, and the versions of what computes."""
    import psutil

    return {
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "chip": _chip(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "gpu": _gpu(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pointsman": _version("pointsman"),
    }


def _chip() -> str:
    """The processor's name: platform.processor() is empty, or only an architecture, on most systems."""
    table = Path("/proc/cpuinfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    if sys.platform == "darwin" and (name := _printed("sysctl", "-n", "machdep.cpu.brand_string")):
        return name
    return platform.processor() or platform.machine()


def _gpu(device: torch.device) -> str | None:
    """On a Mac the chip's own, with its cores; None where nothing but the processor computes."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "mps":
        return None
    cores = torch.backends.mps.get_core_count() if hasattr(torch.backends.mps, "get_core_count") else None
    return f"{_chip()}, {cores} GPU cores" if cores else _chip()


def _printed(*argv: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=5, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
