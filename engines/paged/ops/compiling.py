"""C++ compiled when it is needed: the compiler that is here, and a cache on disk.

A library's name is the hash of all that went into it: a file that is there is right. It is written beside and renamed,
under a lock per name: processes that want the same one build it once.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

# A library that nobody has loaded for so long is removed when the next one is built.
UNUSED_SECONDS = 30 * 24 * 3600


class CompileError(Exception):
    """The compiler's own words."""


class NoCompilerError(RuntimeError):
    """There is no compiler here; the message says what would do."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command: $CXX, clang++, g++, or Zig's clang from the `ziglang` wheel.

    Raises: NoCompilerError.
    """
    if os.environ.get("CXX"):
        return tuple(shlex.split(os.environ["CXX"]))
    for name in ("clang++", "g++", "c++"):
        if path := shutil.which(name):
            return (path,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "cc")  # its c++ would build a C++ library first, for a minute
    raise NoCompilerError("no C++ compiler: set CXX, install clang or g++, or `pip install ziglang`")


@functools.cache
def compiler_version() -> str:
    return subprocess.run([*compiler(), "--version"], capture_output=True, text=True, check=True).stdout


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman"


def build(text: str, options: Sequence[str], folder: Path, *ingredients: str) -> Path:
    """The shared library of a text, in `folder`; `ingredients` is what else it depends on (headers, the processor).

    Raises: CompileError, NoCompilerError.
    """
    said = "\0".join((text, *ingredients, compiler_version(), *compiler(), *options))
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


def _prune(folder: Path) -> None:
    oldest = time.time() - UNUSED_SECONDS
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue


def _compile(text: str, options: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "library.so"
        command = [*compiler(), *options, "-o", str(built), "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(done.stderr.strip())
        built.replace(target)
