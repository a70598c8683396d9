"""scripts/metal_sources.py: the texts that it writes for Apple's compiler, and its use of the compiler's result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engines.paged.ops.metal.kernels import KERNELS

REPOSITORY = Path(__file__).parents[4]
# Rejects one family and records its arguments.
XCRUN = """#!/bin/sh
echo "$@" >> "$ASKED"
case "$*" in *rope-*) echo "$0: error: no such thing" >&2; exit 1;; esac
"""


def script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/metal_sources.py", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )


def test_every_kernel_is_written(tmp_path: Path) -> None:
    """The script writes each family in each dtype as one complete text with the prelude, the constants and its
    includes."""
    done = script(str(tmp_path / "texts"))
    assert done.returncode == 0, done.stderr
    texts = [path.read_text() for path in (tmp_path / "texts").glob("*.metal")]
    written = "".join(texts)
    for path in KERNELS.glob("*.metal"):
        assert f'"{path.name}"' in written
    for text in texts:
        assert "#include <metal_stdlib>" in text
        assert '#line 1 "header"' in text
        assert "kernel void" in text
        assert '.metal"\n' not in "".join(line for line in text.splitlines(True) if line.startswith("#include"))
    for name in ("half", "bfloat", "float"):
        assert f"typedef {name} T;" in written
    assert len(set(texts)) == len(texts)


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac has Apple's own")
def test_what_does_not_compile_fails(tmp_path: Path) -> None:
    """Each text is compiled once; a compile error fails the script and is printed."""
    xcrun = tmp_path / "bin" / "xcrun"
    xcrun.parent.mkdir()
    xcrun.write_text(XCRUN)
    xcrun.chmod(0o755)
    request = tmp_path / "asked"
    done = script(str(tmp_path / "texts"), "--compile", PATH=f"{xcrun.parent}:{os.environ['PATH']}", ASKED=str(request))
    assert done.returncode == 1
    assert "error: no such thing" in done.stdout
    assert "FAIL rope-" in done.stdout
    lines = request.read_text().splitlines()
    assert len(lines) == len(list((tmp_path / "texts").glob("*.metal")))
    assert all("metal -c" in line and "-std=metal3.1" in line for line in lines)
