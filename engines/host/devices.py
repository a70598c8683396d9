"""Memory of this machine and of its NVIDIA GPUs, read without loading a framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one GPU."""

    uuid: str
    total_bytes: int
    used_bytes: int


def machine_memory() -> tuple[int | None, int | None]:
    """Bytes of the machine's memory, and those in use; None where the platform does not report them."""
    with suppress(OSError, KeyError, IndexError, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        fields = {line.partition(":")[0]: line.split() for line in lines}
        total, available = (int(fields[name][1]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return total, total - available
    with suppress(OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None
    return None, None


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
