"""Compiles a Metal source to a shared library of this machine: the compiler's options, and the cache of libraries."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from engines.paged.ops import cpp_compiler
from engines.paged.ops.cpp_compiler import CompileError, NoCompilerError

INCLUDE = Path(__file__).parent / "include"
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1")


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Hardware half-precision conversion and fused multiply-add, if this processor has them."""
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
    return cpp_compiler.cache_root() / "metal-sim"


def flags(sanitize: bool) -> tuple[str, ...]:
    """C++14, the base of Metal 3: later features are errors, also where the compiler would accept them."""
    common = ("-std=c++14", "-x", "c++", "-shared", "-fPIC", "-fvisibility=hidden", "-DHOST_SIM", f"-I{INCLUDE}")
    meaning = ("-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno")
    language = ("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics")  # which Metal lacks
    warnings = ("-w", "-Werror=return-type", "-Werror=c++17-extensions")
    # Compile time matters more than run time here: hence -O1, and -O0 with sanitizers.
    speed = ("-O0", *SANITIZERS) if sanitize else ("-O1",)
    return (*common, *meaning, *language, *warnings, *_machine_flags(), *speed)


def build(text: str, sanitize: bool = False) -> Path:
    """The library of `text` (C++ that includes metal_stdlib).

    Raises: SyntaxError with the compiler's own words; NoCompilerError.
    """
    try:
        return cpp_compiler.build(text, flags(sanitize), cache_folder(), _headers_digest())
    except CompileError as error:
        raise SyntaxError(f"program_source: {error}") from error


def sanitizer_environment() -> dict[str, str]:
    """What a Linux process needs in its environment to load libraries built with sanitizers: $CXX, the first compiler
    whose libraries load, and its runtime.

    Raises: NoCompilerError.
    """
    for command in cpp_compiler.candidates():
        for name in _RUNTIMES:
            request = [*command, f"-print-file-name={name}"]
            runtime = subprocess.run(request, capture_output=True, text=True, check=False).stdout.strip()
            environment = {
                "CXX": shlex.join(command),
                "POINTSMAN_SIM_SANITIZE": "1",
                "LD_PRELOAD": runtime,
                # Leaks of Python itself are ignored; the fibers have their own stacks, so fake ones are off.
                "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0:exitcode=66",
                "UBSAN_OPTIONS": "print_stacktrace=1",
            }
            if Path(runtime).is_file() and _loads_sanitized(command, environment):
                return environment
    raise NoCompilerError(
        "no C++ compiler here has the runtime of AddressSanitizer: install g++, or clang's compiler-rt"
    )


# clang's includes UBSan; libraries built by gcc load UBSan's own runtime.
_RUNTIMES = (f"libclang_rt.asan-{platform.machine()}.so", "libasan.so")


def _loads_sanitized(command: cpp_compiler.Command, environment: Mapping[str, str]) -> bool:
    text = 'extern "C" int half(int *value) { return *value / 2; }'
    try:
        path = cpp_compiler.build(text, flags(sanitize=True), cache_folder(), command=command)
    except CompileError:
        return False
    program = [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(path)!r})"]
    return subprocess.run(program, env={**os.environ, **environment}, capture_output=True, check=False).returncode == 0
