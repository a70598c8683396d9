"""What pip would install on each supported platform: all extras have wheels for every supported Python."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from tests.support.child import REPOSITORY

PYTHONS = ("3.11", "3.13", "3.14")  # 3.12 has what 3.11 and 3.13 have
# As uv names them; the Linux of Ubuntu 22.04, which Triton's wheel needs.
PLATFORMS = ("aarch64-apple-darwin", "x86_64-manylinux_2_35", "aarch64-manylinux_2_35")
EXTRAS = tuple(tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"])
UNREACHABLE = re.compile(r"error sending request|dns error|Connection refused|timed out|Failed to fetch|offline", re.I)


def uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


def resolve(platform: str, python: str, extra: str = "") -> str:
    """The error of uv for one extra, or for all together; "" if all packages are found."""
    command = [str(uv()), "pip", "compile", "--quiet", "--python-platform", platform]
    command += ["--python-version", python, "--only-binary", ":all:"]
    command += ["--extra", extra] if extra else ["--all-extras"]
    done = subprocess.run(
        [*command, "pyproject.toml"],
        cwd=REPOSITORY,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},  # the oldest with wheels of torch and onnxruntime
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.fixture(scope="module")
def failures() -> Mapping[tuple[str, str], str]:
    """By platform and Python; most of their time is waiting for the registry."""
    if uv() is None:
        pytest.skip("uv is not installed")
    pairs = list(product(PLATFORMS, PYTHONS))
    with ThreadPoolExecutor(6) as threads:
        return dict(zip(pairs, threads.map(lambda pair: resolve(*pair), pairs), strict=True))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_every_extra_has_wheels(failures: Mapping[tuple[str, str], str], platform: str, python: str) -> None:
    """All extras together resolve from wheels alone; if not, each extra is checked, and the error names it."""
    failure = failures[platform, python]
    if UNREACHABLE.search(failure):
        pytest.skip(f"the registry of packages does not answer: {failure.strip().splitlines()[0]}")
    if failure:
        with ThreadPoolExecutor(4) as threads:
            found = dict(zip(EXTRAS, threads.map(lambda extra: resolve(platform, python, extra), EXTRAS), strict=True))
        raise AssertionError({extra: text for extra, text in found.items() if text} or failure)
