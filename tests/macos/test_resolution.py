"""What pip would install on a Mac: each extra has wheels for every supported Python."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.child import REPOSITORY

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = tuple(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
UNREACHABLE = re.compile(r"error sending request|dns error|Connection refused|timed out|Failed to fetch|offline", re.I)


def uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def resolve(python: str, extra: str = "") -> str:
    """The error of uv for one extra, or for all together; "" if all packages are found."""
    command = [str(uv()), "pip", "compile", "--quiet", "--python-platform", "aarch64-apple-darwin"]
    command += ["--python-version", python, "--only-binary", ":all:"]
    command += ["--extra", extra] if extra else ["--all-extras"]
    done = subprocess.run(
        [*command, "pyproject.toml"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "MACOSX_DEPLOYMENT_TARGET": "14.0",
        },  # the oldest with wheels of torch and onnxruntime
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("python", PYTHONS)
def test_every_extra_has_wheels_for_a_mac(python: str) -> None:
    """All extras together resolve on Apple silicon and macOS 14 from wheels alone; if not, each extra is checked."""
    if uv() is None:
        pytest.skip("uv is not installed")
    failure = resolve(python)
    if UNREACHABLE.search(failure):
        pytest.skip(f"the registry of packages does not answer: {failure.strip().splitlines()[0]}")
    if failure:
        with ThreadPoolExecutor(4) as threads:
            failures = dict(zip(EXTRAS, threads.map(lambda extra: resolve(python, extra), EXTRAS), strict=True))
        raise AssertionError({extra: text for extra, text in failures.items() if text} or failure)
