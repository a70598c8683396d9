"""The machine that figures were measured on, and its memory bandwidth."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engines.paged.ops.reference import Ops


def describe_machine(device: torch.device) -> dict[str, Any]:
    """The machine, its chip, its memory, its system, and the versions of the software."""
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
    """On a Mac the chip with its GPU cores; None without a GPU."""
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


# Far more than caches hold; a large server's shared cache has hundreds of MB, of which a guest gets a part.
BUFFER_BYTES = 1 << 30
# Of the free memory: a measurement must not fill it.
FREE_SHARE = 0.25
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bytes per second of each round: `read` sums a buffer, `copy` counts bytes read and written."""

    buffer_bytes: int
    read: tuple[float, ...]
    copy: tuple[float, ...]

    @property
    def best(self) -> float:
        """The fastest round of either."""
        return max(*self.read, *self.copy)


def measure_bandwidth(
    device: torch.device, free_bytes: int, on_round: Callable[[int, int], None] | None = None
) -> Bandwidth:
    """Measure with torch's current number of threads. `on_round` gets the number of rounds done and their total."""
    size = max(1 << 20, min(BUFFER_BYTES, int(free_bytes * FREE_SHARE / 2)))
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    target, ops = torch.empty_like(source), Ops(device)
    reads, copies = [], []
    for number in range(-1, ROUNDS):
        read = size / _seconds(source.sum, ops)
        copied = 2 * size / _seconds(partial(target.copy_, source), ops)
        if number < 0:
            continue  # a warm-up: pages are touched, kernels compiled
        reads.append(read)
        copies.append(copied)
        if on_round is not None:
            on_round(number + 1, ROUNDS)
    del source, target  # the allocator's cached memory is needed by a model
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    return Bandwidth(size, tuple(reads), tuple(copies))


def _seconds(work: Callable[[], Tensor], ops: Ops) -> float:
    ops.synchronize()
    begun_at = time.perf_counter()
    work()
    ops.synchronize()
    return time.perf_counter() - begun_at
