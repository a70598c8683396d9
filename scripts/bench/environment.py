"""The environment of a run: the machine, the programs and their versions. Figures without these mean little."""

import datetime
import importlib.metadata
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil


def describe(
    proxies: Mapping[str, str | None], generators: Sequence[str | None], options: dict[str, Any]
) -> dict[str, Any]:
    """The facts that a reader needs to judge or to repeat a run."""
    return {
        "time": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": platform.platform(),
        "load_average_before": os.getloadavg()[0],
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        # The build as well: a Python without profile-guided optimisation takes a tenth more CPU.
        "python": f"{platform.python_version()} ({Path(sys.executable).resolve()})",
        "uvloop": importlib.metadata.version("uvloop"),
        "load_generators": [version for version in generators if version],
        "proxies": dict(proxies),
        "options": options,
    }


def _processor() -> str:
    """The processor's name: platform.processor() is empty or only an architecture on most systems."""
    table = Path("/proc/cpuinfo")
    if table.exists():
        for line in table.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def as_lines(environment: dict[str, Any]) -> list[str]:
    versions = [f"python {environment['python']}", f"uvloop {environment['uvloop']}", *environment["load_generators"]]
    versions += [version for name, version in environment["proxies"].items() if name != "direct"]
    return [
        f"{environment['processor']}, {environment['cores']} cores, {environment['memory_gb']} GB, "
        f"{environment['system']}, load average {environment['load_average_before']:.2f}",
        ", ".join(version for version in versions if version),
    ]
