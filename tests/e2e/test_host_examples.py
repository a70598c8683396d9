"""The examples of JAX, MPS and CoreML: what their comments say, before a real `pointsman host`."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engines.cli.app import app as engines_app
from tests.docs.pages import whole_commands
from tests.support import plain_http
from tests.support.child import REPOSITORY
from tests.support.host import HostProcess
from tests.support.servers import SAMPLE_MODELS, GatewayProcess

pytestmark = pytest.mark.timeout(300)

EXAMPLES = {"jax": "jax", "mps": "torch", "coreml": "coremltools"}  # and what each needs
HAS = {name: find_spec(module) is not None for name, module in EXAMPLES.items()}
HAS["coreml"] = HAS["coreml"] and sys.platform == "darwin"  # elsewhere tests/engines/convert makes such a model


def example(name: str) -> Path:
    return REPOSITORY / "routing_rules" / "engines" / f"{name}.yaml"


def commands(name: str) -> list[str]:
    """The commands in an example's comment."""
    lines = [line[1:] for line in example(name).read_text().splitlines() if line.startswith("#   ")]
    return list(whole_commands("\n".join(lines)))


def make_models(name: str, folder: Path) -> None:
    """Run what an example says before it starts the host, but for installations and samples."""
    for text in commands(name):
        words = shlex.split(text)
        if words[:2] == ["pointsman", "host"]:
            return
        if words[:2] == ["pointsman", "convert"]:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                done = CliRunner().invoke(engines_app, words[1:])
            assert done.exit_code == 0, done.output
        elif words[0] not in ("pip", "pointsman"):
            text = text.replace("python -c", f"{sys.executable} -c", 1)
            subprocess.run(["bash", "-c", text], cwd=folder, check=True, capture_output=True, timeout=240)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostProcess]:
    """One host with all of their models that can be made here."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("mps", "coreml"):
        (folder / "models" / name).mkdir(parents=True)
        if HAS[name]:
            make_models(name, folder)
    repositories = [SAMPLE_MODELS, folder / "models" / "mps", folder / "models" / "coreml"]
    models = {"jax": "mamba", "mps": "net-mps", "coreml": "net-coreml"}
    loaded = [model for name, model in models.items() if HAS[name]]
    options = ["--model-control-mode", "explicit", *(part for name in loaded for part in ("--load-model", name))]
    started = HostProcess.start(repositories, folder / "host", extra_args=options)
    yield started.wait_ready()
    started.stop()


@pytest.fixture(scope="module")
def gateway(host: HostProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    rules = [part for name in EXAMPLES for part in ("--rules", str(example(name)))]
    with pytest.MonkeyPatch.context() as patch:
        for name in EXAMPLES:
            patch.setenv(f"{name.upper()}_URL", host.http_url)
            patch.setenv(f"{name.upper()}_GRPC", host.grpc_url)
        started = GatewayProcess.start("version: 1\n", tmp_path_factory.mktemp("gateway"), extra_args=rules)
    yield started.wait_ready()
    started.stop()


def ask(gateway: GatewayProcess, name: str) -> list[float]:
    """Send the request of an example's last command; the numbers of its first output."""
    words = shlex.split(commands(name)[-1])
    path, body = words[1].partition("/")[2], json.loads(words[words.index("-d") + 1])
    reply = plain_http.post(f"{gateway.http_url}/{path}", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    assert reply.headers["x-pointsman-engine"] == name
    numbers: list[float] = reply.json()["outputs"][0]["data"]
    return numbers


@pytest.mark.skipif(not HAS["jax"], reason="jax is not installed")
def test_jax(gateway: GatewayProcess) -> None:
    """The sample's scores of the next byte come back."""
    assert len(ask(gateway, "jax")) >= 256


@pytest.mark.skipif(not HAS["mps"], reason="torch is not installed")
def test_torch(gateway: GatewayProcess) -> None:
    """The model that the comment makes answers, by this machine's device."""
    assert len(ask(gateway, "mps")) == 2


@pytest.mark.skipif(not HAS["coreml"], reason="needs a Mac, and coremltools")
def test_coreml(gateway: GatewayProcess) -> None:
    """The model that the comment converts answers."""
    assert len(ask(gateway, "coreml")) == 2
