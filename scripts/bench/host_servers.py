"""The start commands of the servers in the engine host's benchmark: logs off, defaults otherwise, one adder each."""

import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.processes import SCRIPTS, BenchError, Children, free_port, pinned
from bench.programs import Running, Site, first_line
from gateway.demo.triton import TritonProcess, why_unavailable

START_SECONDS = 90.0

# MLServer needs other versions of some libraries than Pointsman: it has an environment of its own.
MLSERVER = SCRIPTS.parent / ".bench-mlserver" / "bin" / "mlserver"
HOW_TO_GET_MLSERVER = "python -m venv .bench-mlserver && .bench-mlserver/bin/pip install mlserver 'uvloop<0.21'"

Start = Callable[[Site, Path, Sequence[str], ExitStack], Running]


@dataclass(frozen=True, slots=True)
class HostServer:
    """A server of the benchmark. `find` returns its version, or None if it is not installed; `why` names what is
    missing."""

    name: str
    find: Callable[[], str | None]
    why: Callable[[], str]
    start: Start  # in the site, of a repository and of those of its models that this server can run


def start_triton(site: Site, repository: Path, models: Sequence[str], stack: ExitStack) -> Running:
    arguments = ["--model-control-mode=explicit", *(f"--load-model={model}" for model in models)]
    arguments += ["--log-info=false", "--log-warning=false"]
    with pinned(site.cores):
        triton = TritonProcess.start(repository, extra_args=arguments, log_path=site.folder / "triton.log")
    stack.callback(triton.kill)
    triton.wait_ready(START_SECONDS)
    process = psutil.Process(triton.process.pid)
    return Running("triton", {"rest": triton.http_port, "grpc": triton.grpc_port}, process, process)


def start_ours(site: Site, repository: Path, models: Sequence[str], stack: ExitStack) -> Running:
    import sys

    ready = site.folder / "host-ready.json"
    ready.unlink(missing_ok=True)
    argv = [sys.executable, "-m", "engines", "host", "--model-repository", str(repository), "--ready-file", str(ready)]
    argv += ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--model-control-mode", "explicit"]
    argv += [part for model in models for part in ("--load-model", model)]
    process = site.children.spawn("ours", argv, site.cores)
    wait_until(ready.exists, site.children, process, "ours")
    ports = json.loads(ready.read_text())
    return Running("ours", {"rest": ports["http"], "grpc": ports["grpc"]}, process, process)


def start_mlserver(site: Site, repository: Path, models: Sequence[str], stack: ExitStack) -> Running:
    folder = site.folder / "mlserver"
    (folder / "adder").mkdir(parents=True, exist_ok=True)
    shutil.copy(SCRIPTS / "bench" / "host_mlserver.py", folder / "adder" / "adder_model.py")
    rest, grpc, metrics = free_port(), free_port(), free_port()
    settings = {"host": "127.0.0.1", "http_port": rest, "grpc_port": grpc, "metrics_port": metrics, "debug": False}
    settings["logging_settings"] = {"version": 1, "disable_existing_loggers": True, "root": {"level": "ERROR"}}
    (folder / "settings.json").write_text(json.dumps(settings))
    model = {"name": "adder", "implementation": "adder_model.Adder", "parameters": {"version": "1"}}
    (folder / "adder" / "model-settings.json").write_text(json.dumps(model))
    process = site.children.spawn("mlserver", [MLSERVER, "start", folder], site.cores)
    wait_until(lambda: _is_ready(rest), site.children, process, "mlserver")
    return Running("mlserver", {"rest": rest, "grpc": grpc}, process, process)


def _is_ready(port: int) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/adder/ready", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], children: Children, process: psutil.Process, what: str) -> None:
    """Raises: BenchError with the end of its log if the server ends, or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while not condition():
        children.require_alive(process)
        if time.monotonic() > deadline:
            raise BenchError(f"{what} was not ready in {START_SECONDS:.0f} s: {children.log_tail(what)}")
        time.sleep(0.05)


def _triton_version() -> str | None:
    return None if why_unavailable() else "Triton 2.51, python backend"


def _mlserver_version() -> str | None:
    return first_line(MLSERVER, "--version") if os.access(MLSERVER, os.X_OK) else None


def _our_version() -> str | None:
    revision = first_line("git", "-C", SCRIPTS, "describe", "--always", "--dirty") or "no revision"
    return f"pointsman host ({revision})"


SERVERS = {
    server.name: server
    for server in (
        HostServer("triton", _triton_version, lambda: why_unavailable() or "", start_triton),
        HostServer("mlserver", _mlserver_version, lambda: HOW_TO_GET_MLSERVER, start_mlserver),
        HostServer("ours", _our_version, lambda: "", start_ours),
    )
}
