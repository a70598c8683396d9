"""Memory of this machine and of its NVIDIA GPUs, read without loading a framework."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class SystemUsage:
    """Bytes; None where the platform does not report them."""

    memory_total_bytes: int | None
    memory_used_bytes: int | None
    process_bytes: int | None


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one GPU."""

    uuid: str
    total_bytes: int
    used_bytes: int


def system_usage() -> SystemUsage:
    """Memory of the machine and of this process (its peak where the current size is unknown)."""
    total, available = _linux_memory()
    if total is None:
        with suppress(ValueError, OSError):
            total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    used = None if total is None or available is None else total - available
    return SystemUsage(total, used, _process_bytes())


def device_memory() -> Sequence[DeviceMemory]:
    """The memory of each GPU; empty without NVML."""
    nvml = _nvml()
    if nvml is None:
        return ()
    gpus = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(device)
            uuid = nvml.nvmlDeviceGetUUID(device)
            text = uuid.decode() if isinstance(uuid, bytes) else uuid
            gpus.append(DeviceMemory(text, int(memory.total), int(memory.used)))
    except nvml.NVMLError:
        return ()
    return gpus


@cache
def _nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _linux_memory() -> tuple[int | None, int | None]:
    """Total and available memory."""
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return None, None
    fields = {line.partition(":")[0]: line.split() for line in text.splitlines()}
    try:
        return int(fields["MemTotal"][1]) * 1024, int(fields["MemAvailable"][1]) * 1024
    except (KeyError, IndexError, ValueError):
        return None, None


def _process_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
