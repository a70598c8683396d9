#!/usr/bin/env python3
"""Write every Metal source as `torch.mps.compile_shader` gets it, and compile each with Apple's compiler if it is
installed.

    .venv/bin/python scripts/metal_sources.py DIR              # writes DIR/*.metal
    .venv/bin/python scripts/metal_sources.py DIR --compile    # and runs `xcrun metal -c` on each (Xcode)

The texts are those of the start-up check's cases, which take every path of every kernel, in each dtype. Exit status: 0,
or 1 if a text does not compile.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from engines.paged.ops.metal.check_cases import cases
from engines.paged.ops.metal.ops import MetalOps

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# bfloat needs 3.1, which macOS 14 has; torch takes the newest that the system has. Its default is safe mathematics.
COMPILER = ("xcrun", "-sdk", "macosx", "metal", "-c", "-std=metal3.1", "-fno-fast-math", "-o", "/dev/null")
_FAMILY = re.compile(r'#line 1 "(\w+)\.metal"')


class _Nothing:
    """A library whose kernels do nothing."""

    def __getattr__(self, name: str) -> object:
        return lambda *args, **keywords: None


def sources(dtype: torch.dtype) -> Iterator[tuple[str, str]]:
    """(family, text) of every library that the operations compile for weights of a dtype."""
    found: list[str] = []

    def compile_shader(source: str) -> _Nothing:
        found.append(source)
        return _Nothing()

    ops = MetalOps(compile_shader, "cpu")
    for case in cases(dtype):
        case.compute(ops)  # type: ignore[arg-type]
    keys = torch.zeros(1, 2, 16, 1, 8, dtype=dtype)
    ops.pack_blocks(keys, keys, torch.tensor([1]))
    ops.kernels.load("ordering")
    for text in found:
        yield _FAMILY.findall(text)[1], text  # the first is the prelude


def write(folder: Path) -> list[Path]:
    """One file per text, without duplicates: FAMILY-NUMBER.metal."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict.fromkeys(pair for dtype in DTYPES for pair in sources(dtype))
    paths = []
    for number, (family, text) in enumerate(texts):
        paths.append(folder / f"{family}-{number:03}.metal")
        paths[-1].write_text(text, encoding="ascii")
    return paths


def compile_all(paths: Sequence[Path]) -> list[Path]:
    """The files that do not compile; the compiler's messages are printed."""
    failed = []
    for path in paths:
        done = subprocess.run([*COMPILER, str(path)], capture_output=True, text=True, check=False)
        print(f"{'ok  ' if done.returncode == 0 else 'FAIL'} {path.name}")
        if done.returncode or done.stderr:
            print(done.stdout + done.stderr)
        failed += [path] * (done.returncode != 0)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Write Metal's texts, and compile them.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compile", action="store_true", help="run `xcrun metal -c` on each")
    options = parser.parse_args()
    paths = write(options.folder)
    failed = compile_all(paths) if options.compile else []
    print(f"{len(paths)} texts in {options.folder}" + (f", {len(failed)} do not compile" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
