"""From a Metal source to a shared library of this machine: the compiler, its flags, and a cache on disk.

A library's name is the hash of all that went into it (text, headers, compiler, flags): a file that is there is right.
It is written beside and renamed, under a lock per name: processes that want the same one build it once.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

INCLUDE = Path(__file__).parent / "include"
# A library that nobody has loaded for so long is removed when the next one is built.
UNUSED_SECONDS = 30 * 24 * 3600
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command: $CXX, clang++, g++, or Zig's clang from the `ziglang` wheel."""
    if os.environ.get("CXX"):
        return tuple(shlex.split(os.environ["CXX"]))
    for name in ("clang++", "g++", "c++"):
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")  # its c++ would build a C++ library first, for a minute
    raise RuntimeError("no C++ compiler: set CXX, install clang or g++, or `pip install ziglang`")


@functools.cache
def _compiler_version() -> str:
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Half-precision conversion and fused multiply-add in hardware, where this processor has them."""
    if platform.machine() != "x86_64":
        return ()
    try:
        known = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return ()
    return tuple(flag for flag, name in (("-mf16c", "f16c"), ("-mfma", "fma")) if name in known)


@functools.cache
def _headers_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(INCLUDE.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def cache_folder() -> Path:
    if given := os.environ.get("POINTSMAN_SIM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman" / "metal-sim"


def flags(sanitize: bool) -> tuple[str, ...]:
    """C++14 is what Metal 3 is made of: what came later is an error, also where the compiler would let it through."""
    common = ("-std=c++14", "-x", "c++", "-shared", "-fPIC", "-fvisibility=hidden", "-DHOST_SIM", f"-I{INCLUDE}")
    meaning = ("-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno")
    language = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")  # of which Metal has none
    warnings = ("-w", "-Werror=return-type", "-Werror=c++17-extensions")
    # Kernels are compiled more often than they are run for long; with sanitizers that is true of -O0 even.
    speed = ("-O0", *SANITIZERS) if sanitize else ("-O1",)
    return (*common, *meaning, *language, *warnings, *_machine_flags(), *speed)


def _prune(folder: Path) -> None:
    oldest = time.time() - UNUSED_SECONDS
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue


def build(text: str, sanitize: bool = False) -> Path:
    """The library of `text` (C++ that includes metal_stdlib). Raises SyntaxError with the compiler's own words."""
    options = flags(sanitize)
    said = "\0".join((text, _headers_digest(), _compiler_version(), *compiler(), *options))
    folder = cache_folder()
    target = folder / f"{hashlib.sha256(said.encode()).hexdigest()[:40]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _prune(folder)
                _compile(text, options, target)
    os.utime(target)
    return target


def _compile(text: str, options: tuple[str, ...], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "library.so"
        done = subprocess.run(
            [*compiler(), *options, "-o", str(built), "-"], input=text, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise SyntaxError("program_source: " + done.stderr.strip())
        built.replace(target)


def sanitizer_environment() -> dict[str, str]:
    """What a process needs in its environment to load libraries built with sanitizers."""
    runtime = subprocess.run(
        [*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # Python itself leaks and never mind; the fibers' stacks are ours, so no fake ones.
    options = "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0:exitcode=66"
    return {
        "POINTSMAN_SIM_SANITIZE": "1",
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
