"""The wheel and the sdist, built as a release builds them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from gateway.cli.commit import commit_of
from tests.support.child import REPOSITORY

COMMIT = "gateway/commit.txt"


def build(target: str, source: Path, folder: Path, **environment: str) -> Path:
    pytest.importorskip("hatchling", reason="pip install hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(
        command, cwd=source, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.iterdir()
    return built


def version(wheel: Path, folder: Path) -> str:
    """What `pointsman --version` says where this wheel is installed, beside the packages of this environment."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    command = [sys.executable, "-m", "gateway", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_packages_name_their_commit(tmp_path: Path) -> None:
    """The sdist and the wheel that is built from it, without a repository, say which commit they are of."""
    with tarfile.open(build("sdist", REPOSITORY, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    commit = commit_of(REPOSITORY)
    assert commit and (source / COMMIT).read_text().strip() == commit == commit_of(source)
    wheel = build("wheel", source, tmp_path / "wheel", SOURCE_COMMIT="other")
    assert version(wheel, tmp_path / "installed").endswith(f" (commit {commit}, pure Python)")


def test_a_build_without_a_repository_takes_the_commit_it_is_given(tmp_path: Path) -> None:
    """An image's build passes SOURCE_COMMIT; without it the version is told without a commit."""
    (source := tmp_path / "source").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "gateway", "scripts"):
        (source / name).symlink_to(REPOSITORY / name)
    (source / "engines").mkdir()
    (source / "engines" / "__init__.py").write_text("")
    assert commit_of(source) == ""
    wheel = build("wheel", source, tmp_path / "given", SOURCE_COMMIT="0123456789ab")
    assert "(commit 0123456789ab, " in version(wheel, tmp_path / "installed")
    with zipfile.ZipFile(build("wheel", source, tmp_path / "none")) as archive:
        assert COMMIT not in archive.namelist()
