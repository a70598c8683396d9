"""What pip would install on a Mac: each extra has wheels for every Python that we support."""

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
    """What stops the installation of an extra, or of all together, in uv's words; "" where all is found."""
    command = [str(uv()), "pip", "compile", "--quiet", "--python-platform", "aarch64-apple-darwin"]
    command += ["--python-version", python, "--only-binary", ":all:"]
    command += ["--extra", extra] if extra else ["--all-extras"]
    done = subprocess.run(
        [*command, "pyproject.toml"],
        cwd=REPOSITORY,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},  # the oldest that torch and onnxruntime have wheels for
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("python", PYTHONS)
def test_every_extra_has_wheels_for_a_mac(python: str) -> None:
    """Apple silicon, macOS 14, nothing compiled: what resolves for all extras together does for each."""
    if uv() is None:
        pytest.skip("uv is not installed")
    failure = resolve(python)
    if UNREACHABLE.search(failure):
        pytest.skip(f"the registry of packages does not answer: {failure.strip().splitlines()[0]}")
    if failure:
        with ThreadPoolExecutor(4) as threads:
            failures = dict(zip(EXTRAS, threads.map(lambda extra: resolve(python, extra), EXTRAS), strict=True))
        raise AssertionError({extra: text for extra, text in failures.items() if text} or failure)
