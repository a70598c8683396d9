"""The workflows of GitHub Actions: what can be said of them without running them."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.release_notes import ReleaseError, notes

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
PROGRAM = re.compile(r"^ *((?:\.venv/bin/)?(?:python3?|bash) )?((?:scripts|\.ci)/[\w./-]+)", re.MULTILINE)


def workflow(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((REPOSITORY / ".github" / "workflows" / name).read_text())
    return loaded


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in yaml.safe_load(path.read_text())["jobs"].values() for step in job.get("steps", ())]


def test_there_are_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["linux.yml", "macos.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one(path: Path) -> None:
    """It says when it runs, may only read but where a job says so, and each job has a machine and an end."""
    loaded = yaml.safe_load(path.read_text())
    assert loaded[True]  # YAML 1.1 reads `on` as a boolean
    assert loaded["permissions"] == {"contents": "read"}
    for job in loaded["jobs"].values():
        if "uses" in job:  # another workflow of this repository, which may be called
            assert "workflow_call" in yaml.safe_load((REPOSITORY / job["uses"]).read_text())[True]
            continue
        assert job["runs-on"]
        assert 0 < job["timeout-minutes"] <= 360


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_steps_do_one_thing_that_exists(path: Path) -> None:
    """A step runs commands or an action of a pinned version; scripts of ours are there and can be run."""
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+(\.\d+)*", step["uses"])
        for interpreter, script in PROGRAM.findall(step.get("run", "")):
            assert os.access(REPOSITORY / script, os.R_OK if interpreter else os.X_OK), script
    assert any(PROGRAM.search(step.get("run", "")) for step in steps(path))


def test_a_release() -> None:
    """Only what a tag starts is published, after the tests on Linux and macOS and all installations; jobs that
    write name what."""
    jobs = workflow("release.yml")["jobs"]
    assert [jobs[name]["uses"] for name in ("linux", "macos")] == [
        "./.github/workflows/linux.yml",
        "./.github/workflows/macos.yml",
    ]

    def before(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*(before(each) for each in direct))

    assert before("publish") == jobs.keys() - {"publish"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert {name: job["permissions"] for name, job in jobs.items() if "permissions" in job} == {
        "images": {"contents": "read", "packages": "write"},
        "publish": {"contents": "write", "id-token": "write"},
    }
    classifiers = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [re.sub(".* :: ", "", each) for each in classifiers if re.search(r"Python :: \d\.", each)]
    for name in ("install", "compiled"):
        matrix = jobs[name]["strategy"]["matrix"]
        assert matrix["python"] == pythons
        assert [re.sub(r"[\d.]+", "", machine) for machine in matrix["machine"]] == ["ubuntu-", "ubuntu--arm", "macos-"]
    for image in jobs["images"]["strategy"]["matrix"]["image"]:
        assert (REPOSITORY / "docker" / f"{image}.Dockerfile").is_file()
    build = next(step for step in jobs["images"]["steps"] if "build-push" in step.get("uses", ""))
    assert build["with"]["platforms"] == "linux/amd64,linux/arm64"


def test_the_notes_of_a_release(tmp_path: Path) -> None:
    """A version's section of the changelog; another version than the project's, or one without a section, fails."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- New.\n\n## 0.1.0\n\n- Old.\n")
    assert notes("0.2.0", tmp_path) == "- New.\n"
    for version, error in (("0.1.0", "has version 0.2.0"), ("2.0", "is not a version")):
        with pytest.raises(ReleaseError, match=error):
            notes(version, tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n- New.\n")
    with pytest.raises(ReleaseError, match="rename '## Unreleased'"):
        notes("0.2.0", tmp_path)


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
