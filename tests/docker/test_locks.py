"""The locks of the images' packages, and the bill of materials."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docker.bare import REPOSITORY, read_dockerfile

LOCKS = REPOSITORY / "docker" / "locks"
ASKED = {"gateway": ["shadow", "jwt", "otel"], "engine-host": ["onnx"], "build": ["--build"]}
PLATFORMS = [
    {"sys_platform": "linux", "platform_machine": machine, "python_version": "3.12", "python_full_version": "3.12.12"}
    for machine in ("x86_64", "aarch64")
]


def locked(name: str) -> list[tuple[Requirement, list[str]]]:
    """The packages of a lock, each with its hashes."""
    text = (LOCKS / f"{name}.txt").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(Requirement(line.partition("--hash")[0]), re.findall(r"--hash=(\S+)", line)) for line in lines]


def asked(name: str) -> list[Requirement]:
    script = [sys.executable, str(REPOSITORY / "docker/requirements.py"), str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run([*script, *ASKED[name]], capture_output=True, text=True, check=True)
    return [Requirement(line) for line in done.stdout.splitlines()]


def holds(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("name", ASKED)
def test_a_lock_names_one_version_of_each_package_with_hashes(name: str) -> None:
    """Each line is one version with SHA-256 hashes, and on a platform no package has two."""
    for requirement, hashes in locked(name):
        assert re.fullmatch(r"==[\w.!+]+", str(requirement.specifier)), requirement
        assert hashes and all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), requirement
    for environment in PLATFORMS:
        names = [canonicalize_name(each.name) for each, _ in locked(name) if holds(each, environment)]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ASKED)
def test_a_lock_satisfies_what_the_project_asks_for(name: str) -> None:
    """Each dependency of pyproject.toml is locked at a version that it allows, on x86-64 and ARM. Where it is not:
    scripts/lock."""
    for environment in PLATFORMS:
        found = {canonicalize_name(each.name): each.specifier for each, _ in locked(name) if holds(each, environment)}
        for requirement in asked(name):
            if holds(requirement, environment):
                pinned = str(found[canonicalize_name(requirement.name)]).removeprefix("==")
                assert requirement.specifier.contains(pinned), (requirement, pinned)


@pytest.mark.parametrize("image", ["gateway", "engine-host"])
def test_an_image_installs_by_its_lock(image: str) -> None:
    """All that an image installs from an index has hashes; its own wheel is installed without one."""
    runs = " ".join(each.text for each in read_dockerfile(REPOSITORY / f"docker/{image}.Dockerfile"))
    for command in re.findall(r"pip --python \S+ install ([^&]*)", runs):
        assert re.search(rf"-r (?:{image}|build)\.txt|--no-index", command), command
    assert "--no-build-isolation" in runs and "sbom.py > /opt/pointsman/sbom.cdx.json" in runs


def bill() -> Any:
    command = [sys.executable, str(REPOSITORY / "docker/sbom.py")]
    return orjson.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def test_the_bill_of_materials_names_what_is_installed() -> None:
    """CycloneDX 1.5: each package with its version, package URL and licence, and what it depends on; the same packages
    give the same bill."""
    found = bill()
    assert (found["bomFormat"], found["specVersion"], found["version"]) == ("CycloneDX", "1.5", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", found["serialNumber"])
    components = {each["name"].lower(): each for each in found["components"]}
    assert components["orjson"]["purl"] == f"pkg:pypi/orjson@{version('orjson')}"
    assert components["orjson"]["licenses"]
    references = [each["bom-ref"] for each in found["components"]]
    graph = {each["ref"]: each["dependsOn"] for each in found["dependencies"]}
    assert len(references) == len(set(references)) and set(references) <= set(graph)
    assert set().union(*graph.values()) <= set(graph)
    assert components["h11"]["bom-ref"] in graph[components["uvicorn"]["bom-ref"]]
    assert bill() == found


def test_an_audit_that_cannot_run_says_so(tmp_path: Path) -> None:
    """Without pip-audit, or without the network, the audit is skipped with a line, and fails only under --strict."""
    tool = tmp_path / "pip-audit"
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "POINTSMAN_AUDIT_URL": "http://127.0.0.1:1/"}

    def audit(*options: str) -> tuple[int, str]:
        command = [str(REPOSITORY / "scripts/audit"), *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, done.stdout

    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(0o755)
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    assert audit() == (0, "audit skipped: http://127.0.0.1:1/ cannot be reached\n")
    assert audit("--strict")[0] == 3
