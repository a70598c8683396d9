"""What applications are built of: arguments, command lines, the list of replicas and the policy; without a cluster."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request

from engines.ray_app.arguments import HostArguments, LlmArguments
from engines.ray_app.command_options import command_line
from engines.ray_app.endpoint_list import EndpointList
from engines.ray_app.policy import IN_FLIGHT, scale
from engines.ray_app.replica_leases import ReplicaLeases
from engines.ray_app.server_process import ServerError, ServerProcess
from tests.support.child import REPOSITORY
from tests.support.waiting import eventually


def test_options_of_the_commands_are_arguments() -> None:
    """A name is that of the option, with `_`; a flag is a boolean; a list repeats the option. Paths become absolute,
    URLs stay."""
    arguments = HostArguments.model_validate(
        {"model_repository": ["models", "s3://bucket/models"], "strict_readiness": False, "max_replicas": "4"}
    )
    assert arguments.max_replicas == 4
    assert command_line("host", arguments.options) == [
        "host",
        f"--model-repository={Path.cwd() / 'models'}",
        "--model-repository=s3://bucket/models",
        "--strict-readiness=false",
    ]
    llm = LlmArguments.model_validate({"model": "/m", "num_cpus": 4, "prefix_cache": "false", "log_info": True})
    assert command_line("llm", llm.options) == ["llm", "--model=/m", "--threads=4", "--no-prefix-cache", "--log-info"]


def test_mistakes_are_named() -> None:
    """An unknown option is refused with the nearest one before anything starts; so are bounds that contradict."""
    with pytest.raises(ValueError, match=r"'max_sequence' is no option of .*: max_sequences"):
        command_line("llm", LlmArguments.model_validate({"model": "/m", "max_sequence": 1}).options)
    with pytest.raises(ValidationError, match="max_replicas 1 is less than min_replicas 2"):
        HostArguments(model_repository="m", min_replicas=2)
    with pytest.raises(ValidationError, match="model_repository"):
        HostArguments.model_validate({})


def test_a_lease_ends_unless_it_is_renewed() -> None:
    """A silent replica is left out after the time of the lease; the list settles once all could have renewed theirs."""
    leases = ReplicaLeases(10.0, now=0.0)
    leases.renew("a", {"url": "http://a"}, 1.0)
    leases.renew("b", {"url": "http://b"}, 5.0)
    assert (leases.is_settled(9.0), leases.is_settled(10.0)) == (False, True)
    assert leases.entries(10.0) == [{"url": "http://a"}, {"url": "http://b"}]
    assert leases.entries(11.0) == [{"url": "http://b"}]
    leases.end("b", 12.0)
    leases.end("unknown", 12.0)
    leases.renew("b", {"url": "http://b"}, 12.1)  # it was sent before
    assert leases.entries(12.2) == []


def test_the_policy_divides_the_requests_in_flight() -> None:
    """Replicas for the target; unchanged while none has reported."""

    def context(reported: dict[str, dict[str, float]] | None) -> Any:
        config = SimpleNamespace(get_target_ongoing_requests=lambda: 4.0)
        return SimpleNamespace(aggregated_metrics=reported, target_num_replicas=2, config=config)

    assert scale(context(None))[0] == scale(context({}))[0] == 2
    assert scale(context({IN_FLIGHT: {"a": 9.0, "b": 1.0}})) == (2.5, {})
    assert scale(context({IN_FLIGHT: {"a": 0.0}})) == (0.0, {})


def request(method: str, path: str, token: str = "") -> Request:
    fields = [(b"authorization", f"Bearer {token}".encode())] if token else []
    scope = {"type": "http", "method": method, "root_path": "/app", "path": f"/app{path}", "headers": fields}
    return Request({**scope, "query_string": b""})


def test_the_list_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each replica could join, there is no list; a token is needed where one is set, and missing where its
    variable is; waking calls the engine once at a time."""
    calls: list[asyncio.Future[None]] = []

    def call() -> asyncio.Future[None]:
        calls.append(asyncio.get_running_loop().create_future())
        return calls[-1]

    engine = SimpleNamespace(entry=SimpleNamespace(remote=call))
    with pytest.raises(ValueError, match=r"the environment variable LIST_TOKEN .* is not set"):
        EndpointList(engine, 1.0, "LIST_TOKEN")
    monkeypatch.setenv("LIST_TOKEN", "secret")

    async def test() -> None:
        starting = EndpointList(engine, 1e6, "")
        assert (await starting(request("GET", "/endpoints"))).status_code == 503
        listing = EndpointList(engine, 1e-9, "LIST_TOKEN")
        listing._leases = ReplicaLeases(1e6, time.monotonic() - 1e6)
        await listing.renew("a", {"url": "http://a:1"})
        await listing.renew("b", {"url": "http://b:1"})
        await listing.end("b")
        for token, status in (("", 401), ("secreT", 401), ("secret", 200)):
            assert (await listing(request("GET", "/endpoints", token))).status_code == status
        reply = await listing(request("GET", "/endpoints", "secret"))
        assert reply.body == b'[{"url":"http://a:1"}]'
        for method, path in (("GET", "/"), ("POST", "/endpoints"), ("GET", "/wake")):
            assert (await listing(request(method, path, "secret"))).status_code == 404
        for _ in range(2):
            assert (await listing(request("POST", "/wake", "secret"))).status_code == 202
        assert len(calls) == 1
        calls[0].set_exception(RuntimeError("no node has a GPU"))
        await asyncio.sleep(0)
        while not (listing._waking and listing._waking.done()):
            await asyncio.sleep(0)
        await listing(request("POST", "/wake", "secret"))
        assert len(calls) == 2

    asyncio.run(test())


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    """The error of a replica has the end of its server's log."""
    line = command_line("host", {"model_repository": [str(tmp_path / "missing")], "http_port": 0})

    async def test() -> None:
        server = ServerProcess([*line, "--grpc-port=0", "--metrics-port=0"], "127.0.0.1")
        with pytest.raises(ServerError, match=r"(?s)the server ended: exit code 1:.*missing"):
            await server.start()
        await server.stop(0.0)

    asyncio.run(test())


def test_a_server_ends_with_its_parent(tmp_path: Path) -> None:
    """Where the replica's process is killed, the standard input of its server ends, and so does the server."""
    command = [sys.executable, "-m", "engines.ray_app", "host", f"--model-repository={tmp_path}", "--http-port=0"]
    command += ["--grpc-port=0", "--metrics-port=0", f"--ready-file={tmp_path / 'ready'}"]
    paths = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}) as server:
        try:
            eventually((tmp_path / "ready").exists)
            assert server.poll() is None and server.stdin is not None
            server.stdin.close()
            assert server.wait(120) == 1
        finally:
            server.kill()


def test_the_example_is_a_config_of_serve() -> None:
    """Serve reads the example of the README, and the builders its arguments; in a process of its own, since Ray changes
    where modules are found."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    text = (REPOSITORY / "engines/ray_app/README.md").read_text()
    (config,) = [part.partition("```")[0] for part in text.split("```yaml\n")[1:] if part.startswith("# serve.yaml")]
    done = subprocess.run(
        [sys.executable, "-c", BUILD], input=config, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["endpoints", "endpoints"]


BUILD = """
import sys
import yaml
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
from ray.serve._private.utils import import_attr
from ray.serve.schema import ServeDeploySchema

for each in ServeDeploySchema.model_validate(yaml.safe_load(sys.stdin)).applications:
    application = build(import_attr(each.import_path), each.args)
    print(application._bound_deployment.name)
"""
