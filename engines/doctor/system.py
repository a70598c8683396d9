"""Python, packages, and what the system allows a program."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.shared_memory import SharedMemory

from engines.doctor.command import printed
from engines.doctor.finding import Finding, fail, ok, skipped, warn

_OLDEST, _NEWEST = (3, 11), (3, 14)
_OLDEST_MACOS = 14
# OPEN_MAX, as many as a Mac allows any program; the gateway and the engine host raise their limit to it.
_DESCRIPTORS = 10_240
_PACKAGES = (
    *("pointsman", "torch", "numpy", "tokenizers", "safetensors", "llguidance", "onnxruntime", "coremltools", "jax"),
    *("tensorflow", "tritonclient", "uvloop", "httptools", "protobuf", "redis", "psutil"),
)


def python() -> Finding:
    """The version, the system, and whether both are meant for this processor."""
    is_mac = sys.platform == "darwin"
    here = f"Python {platform.python_version()} ({platform.machine()}), {platform.platform()}"
    brew = "brew install python@3.13, and make the virtual environment with python3.13"
    if is_mac and printed("sysctl", "-n", "sysctl.proc_translated").text == "1":
        return fail(f"{here}, translated by Rosetta", f"use a Python for arm64: {brew}")
    if is_mac and int(platform.mac_ver()[0].partition(".")[0] or _OLDEST_MACOS) < _OLDEST_MACOS:
        return fail(f"{here}: onnxruntime, torch and MLX have no wheels for it", "update to macOS 14 or newer")
    if sys.version_info[:2] < _OLDEST:
        return fail(f"{here} is older than 3.11", brew if is_mac else "install Python 3.11 to 3.14")
    if sys.version_info[:2] > _NEWEST:
        return warn(f"{here}: torch, onnxruntime and others may have no wheels for it yet", "use Python 3.13")
    if is_mac and not hasattr(os, "waitid"):
        return warn(f"{here}: it has no os.waitid, so ended model processes are noticed another way", brew)
    return ok(here)


def packages() -> Finding:
    """Which of the packages that do the work are here, with their versions."""
    found = {name: _version(name) for name in _PACKAGES}
    here = {name: number for name, number in found.items() if number is not None}
    return ok(", ".join(f"{name} {number}" for name, number in here.items()) or "none", versions=found)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def descriptors() -> Finding:
    """The limit of open files: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    told = f"soft limit {_limit(soft)}, hard limit {_limit(hard)}"
    figures = {"soft": soft, "hard": hard}
    if resource.RLIM_INFINITY in (soft, hard) or hard >= _DESCRIPTORS:
        return ok(f"{told}; servers raise theirs to {_DESCRIPTORS} at least", **figures)
    cure = "`pointsman service` sets it for launchd; in a shell: ulimit -Hn 10240"
    if sys.platform != "darwin":
        cure = "LimitNOFILE of the systemd unit, --ulimit nofile of the container, or /etc/security/limits.conf"
    return warn(f"{told}: no more than about {max(0, hard - 30)} connections at a time", cure, **figures)


def _limit(number: int) -> str:
    return "none" if number == resource.RLIM_INFINITY else f"{number:,}"


def shared_memory() -> Finding:
    """Whether fstat tells one POSIX shared memory object from another. macOS gives all of them device 0 and inode 0
    (XNU, pshm_stat): regions of clients are then mapped for each request."""
    memory = SharedMemory(create=True, size=4096)
    try:
        descriptor: int = memory._fd  # type: ignore[attr-defined]
        status = os.fstat(descriptor)
    finally:
        memory.close()
        memory.unlink()
    told = f"fstat of an object says device {status.st_dev}, inode {status.st_ino}"
    if status.st_ino == 0:
        return ok(f"{told}: objects cannot be told apart, as on every Mac; regions are mapped for each request")
    return ok(told)


def power() -> Finding:
    """Whether the Mac sleeps while it serves, or runs on its battery."""
    battery, settings = printed("pmset", "-g", "batt"), printed("pmset", "-g")
    if not settings.is_good:
        return skipped(f"pmset says nothing: {settings.text}")
    sleep = re.search(r"^\s*sleep\s+(\d+)(.*)$", settings.text, re.MULTILINE)
    minutes = int(sleep[1]) if sleep else 0
    low_power = re.search(r"^\s*lowpowermode\s+1\b", settings.text, re.MULTILINE) is not None
    on_battery = "'Battery Power'" in battery.text
    told = [f"sleeps after {minutes} min" if minutes else "does not sleep by itself"]
    told += ["on battery"] * on_battery + ["in Low Power Mode"] * low_power
    cures = []
    if minutes and (sleep is None or "prevented by" not in sleep[2]):
        cures.append("serve under `caffeinate -s`, or `sudo pmset -c sleep 0` (a closed lid still sleeps)")
    if on_battery:
        cures.append("connect the charger: caffeinate -s has no effect on battery, and the GPU is slower")
    if low_power:
        cures.append("turn Low Power Mode off: System Settings > Battery")
    return warn(", ".join(told), "; ".join(cures)) if cures else ok(", ".join(told))
