"""Compiles C++ on demand, with a suitable compiler of this machine and a cache on disk.

A library's name is the hash of all its inputs, so an existing file is valid. It is written beside and renamed, under a
lock per name: processes that need the same library build it once.
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
from collections.abc import Iterator, Sequence
from pathlib import Path

# A library unused for this long is removed when the next one is built.
UNUSED_SECONDS = 30 * 24 * 3600


class CompileError(Exception):
    """With the compiler's output."""


class NoCompilerError(RuntimeError):
    """No suitable compiler; the message names a remedy."""


Command = tuple[str, ...]
Options = tuple[str, ...]

# On macOS without the Command Line Tools the compilers of this folder are stubs that open a dialog.
_STUBS = Path("/usr/bin")
_XCODE_SELECT = "/usr/bin/xcode-select"


def candidates() -> Iterator[Command]:
    """Commands of working compilers, best first: $CXX alone where it is set; else clang++, g++ and c++ of PATH, and
    Zig's clang from the `ziglang` wheel."""
    for command in _named():
        if not _is_stub(command[0]) and version(command) is not None:
            yield command


def compiler() -> Command:
    """The first candidate.

    Raises: NoCompilerError.
    """
    return select_compiler()[0]


def select_compiler(probe: str = "", alternatives: Sequence[Options] = ((),)) -> tuple[Command, Options]:
    """The first compiler that accepts the C++ text `probe`, and the first options of `alternatives` with which it does.

    Raises: NoCompilerError, with the output of the first candidate.
    """
    objections = []
    for command in candidates():
        for options in alternatives:
            if not (objection := _objection(command, probe, options)):
                return command, options
            objections.append(f"{shlex.join(command)}: {objection}")
    if objections:
        raise NoCompilerError(f"no C++ compiler here does what is needed ({objections[0]}): {_CURE}")
    raise NoCompilerError(f"no C++ compiler: {_CURE}")


_CURE = "set CXX, install clang or g++, or `pip install ziglang`"
if sys.platform == "darwin":
    _CURE = "install Apple's Command Line Tools (`xcode-select --install`), set CXX, or `pip install ziglang`"


@functools.cache
def version(command: Command) -> str | None:
    """The compiler's version text; None where it does not run, or fails as a stub does."""
    try:
        return subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _named() -> Iterator[Command]:
    if os.environ.get("CXX"):
        yield tuple(shlex.split(os.environ["CXX"]))
        return
    for name in ("clang++", "g++", "c++"):
        if path := shutil.which(name):
            yield (path,)
    if importlib.util.find_spec("ziglang"):
        yield (sys.executable, "-m", "ziglang", "cc")  # its c++ would build a C++ library first, for a minute


def _is_stub(program: str) -> bool:
    """`xcode-select -p` fails where no developer tools are selected, and opens nothing."""
    path = shutil.which(program)
    if sys.platform != "darwin" or path is None or Path(path).parent != _STUBS:
        return False
    try:
        return subprocess.run([_XCODE_SELECT, "-p"], capture_output=True, check=False).returncode != 0
    except OSError:
        return True


@functools.cache
def _objection(command: Command, probe: str, options: Options) -> str:
    """The first line of the compiler's output where it fails; empty where it succeeds."""
    if not probe and not options:
        return ""
    arguments = [*command, *options, "-x", "c++", "-std=c++17", "-fsyntax-only", "-"]
    done = subprocess.run(arguments, input=probe, capture_output=True, text=True, check=False)
    return (done.stderr.strip().partition("\n")[0] or "it fails") if done.returncode else ""


def cache_root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pointsman"


def build(text: str, options: Sequence[str], folder: Path, *ingredients: str, command: Command | None = None) -> Path:
    """The shared library of a text, in `folder`; `ingredients` are further inputs (headers, the processor). Built by
    `command`, or by the first candidate.

    Raises: CompileError, NoCompilerError.
    """
    command = command or compiler()
    inputs = "\0".join((text, *ingredients, version(command) or "", *command, *options))
    target = folder / f"{hashlib.sha256(inputs.encode()).hexdigest()[:40]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with target.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _prune(folder)
                _compile(command, text, options, target)
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


def _compile(command: Command, text: str, options: Sequence[str], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / "library.so"
        arguments = [*command, *options, "-o", str(built), "-"]
        done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(done.stderr.strip())
        built.replace(target)
