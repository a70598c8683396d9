"""The workflows of GitHub Actions: what can be said of them without running them."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
PROGRAM = re.compile(r"^(?:\.venv/bin/(?:python|bash) )?((?:scripts|\.ci)/[\w./-]+)", re.MULTILINE)


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / ".github" / "workflows" / name).read_text())
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["linux.yml", "macos.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one(path: Path) -> None:
    """It says when it runs, may only read, and each job has a machine and an end."""
    loaded = yaml.safe_load(path.read_text())
    assert loaded[True]  # YAML 1.1 reads `on` as a boolean
    assert loaded["permissions"] == {"contents": "read"}
    for job in loaded["jobs"].values():
        assert job["runs-on"]
        assert 0 < job["timeout-minutes"] <= 360


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_do_one_thing_that_exists(path: Path) -> None:
    """A step runs commands or an action of a pinned version; scripts of ours are there and can be run."""
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"])
        for script in PROGRAM.findall(step.get("run", "")):
            assert os.access(REPOSITORY / script, os.X_OK), script
    assert any(PROGRAM.search(step.get("run", "")) for step in steps(path))


def test_macs_try_what_they_can() -> None:
    """GitHub's virtual Macs leave out the marker `metal`, which is a marker here, and a Mac with a GPU runs it."""
    jobs = workflow("macos.yml")["jobs"]
    markers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["markers"]
    assert any(marker.startswith("metal:") for marker in markers)
    commands = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert '-m "not metal"' in commands["test"]
    assert "-m metal" in commands["metal"]
    found = re.search(
        r"-downloadComponent MetalToolchain.*metal_sources\.py build/metal --compile", commands["kernels"]
    )
    assert found  # newer Xcodes come without Metal's compiler
    assert jobs["test"]["runs-on"] == jobs["kernels"]["runs-on"] == "macos-15"
    assert "self-hosted" in jobs["metal"]["runs-on"]
    assert "pull_request" in jobs["metal"]["if"]
