"""`pointsman up`: the demo, with real engines, the gateway in front of them, and requests through both."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

_START_SECONDS = 60.0
_FLEET_SECONDS = 300.0  # a small machine loads frameworks one after the other
_DRAIN_SECONDS = 3.0  # a demo's requests are short
_STOP_SECONDS = _DRAIN_SECONDS + 10.0
# SIGHUP: the terminal was closed; the children have sessions of their own and would stay.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_RULES = """\
# Written by `pointsman up`. Routes are tried from top to bottom; the first that matches wins.
version: 1
engines:
  mine:
    protocol: kserve
    endpoints: ["{url}"]
routes:
  - name: everything
    engine: mine
"""
# Two engines with the same model: each gets half of the requests.
_BOTH = """\
version: 1
engines:
  triton:
    protocol: kserve
    endpoints: [{{url: "{rest}", grpc: "{grpc}"}}]
experiments:
  host-or-triton:
    unit: request
    arms:
      - {{name: host, engine: language, weight: 50}}
      - {{name: triton, engine: triton, weight: 50}}
routes:
  - name: adder-of-both
    match: {{model: adder}}
    experiment: host-or-triton
"""


@dataclass(frozen=True, slots=True)
class _Gateway:
    """The running gateway and its addresses."""

    process: subprocess.Popen[bytes]
    base: str
    grpc: str
    admin: str
    rules: Path
    data_dir: Path


def _port(name: str, text: str) -> Any:
    return typer.Option(min=0, max=65535, metavar="PORT", help=text, envvar=f"POINTSMAN_{name}")


def up(
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Use this running V2 engine, http://... or grpc://..., instead of the samples.",
        ),
    ] = None,
    triton: Annotated[
        bool,
        typer.Option("--triton", help="Also start a real Triton (nvidia-pytriton), and split one model's traffic."),
    ] = False,
    http_port: Annotated[int, _port("HTTP_PORT", "The gateway's inference port; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, _port("GRPC_PORT", "Its second port, for gRPC clients; 0 takes a free one.")] = 8001,
    admin_port: Annotated[int, _port("ADMIN_PORT", "Its admin port; 0 takes a free one.")] = 8002,
    redis: Annotated[
        str,
        typer.Option(
            metavar="embedded|off|URL",
            envvar="POINTSMAN_REDIS",
            help="Shared state: see `pointsman serve --help`.",
        ),
    ] = "embedded",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="POINTSMAN_DATA_DIR",
            help="Folder of the embedded Redis; by default a temporary one.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop after the sample requests.")] = False,
) -> int:
    """Start a demo: engine hosts with sample models, the gateway in front of them, and sample requests.

    Ctrl-C stops everything.
    """
    from gateway.demo.processes import DemoError
    from gateway.demo.sample_requests import request_metadata, request_samples

    if engine is not None and triton:
        raise typer.BadParameter("--engine and --triton: choose one")
    console = Console(highlight=False)
    with ExitStack() as stack:
        _take_signals(stack)
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-up-")))
            rules, models = folder / "rules", set[str]()
            if engine is not None:
                rules = folder / "rules.yaml"
                rules.write_text(_RULES.format(url=engine))
            else:
                models = _start_samples(stack, console, folder)
            if triton:
                _start_triton(stack, console, folder)
            ports = {"--http-port": http_port, "--grpc-port": grpc_port, "--admin-port": admin_port}
            options = [f"{option}={port}" for option, port in ports.items()]
            state = (data_dir or folder / "state").absolute()
            gateway = _start_gateway(stack, folder, rules, options, redis, state)
            if engine is not None:
                request_metadata(console, gateway.base)
            else:
                request_samples(console, gateway.base, gateway.grpc, models)
            _print_next_steps(console, gateway, models)
            if not once:
                console.print("\nCtrl-C stops everything.")
                raise DemoError(f"The gateway ended with {gateway.process.wait()}.")
        except KeyboardInterrupt:
            console.print("\nStopping.")
            return 1 if once else 0  # interrupted before the samples ended
        except DemoError as error:
            console.print(escape(str(error)), style="red", soft_wrap=True)
            return 1
        finally:
            _ignore_signals()
    return 0


def _take_signals(stack: ExitStack) -> None:
    for number in _STOP_SIGNALS:
        if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            continue  # started by nohup
        stack.callback(signal.signal, number, signal.signal(number, _interrupt))


def _ignore_signals() -> None:
    """A second Ctrl-C must not interrupt the shutdown."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _start_samples(stack: ExitStack, console: Console, folder: Path) -> set[str]:
    """Write the samples into the folder and start their fleet; returns the names of the models.

    Raises: DemoError.
    """
    from gateway.demo.processes import DemoError, start

    with console.status("Writing sample models"):
        command = [sys.executable, "-m", "engines", "samples", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        elsewhere = "With an engine that runs elsewhere: pointsman up --engine http://HOST:8000"
        raise DemoError(f"The sample models cannot be served here: {done.stderr.strip()}\n{elsewhere}")
    for line in done.stderr.splitlines():
        console.print(escape(line), style="yellow", soft_wrap=True)
    ready = folder / "fleet.json"
    with console.status("Starting the engine hosts: each model in a process of its own"):
        start(
            stack,
            "The fleet of engine hosts",
            ["engines", "fleet", str(folder / "fleet.yaml"), "--ready-file", str(ready)],
            ready,
            within=_FLEET_SECONDS,
            timeout=_STOP_SECONDS + 10.0,
            log=folder / "fleet.log",
        )
    models: set[str] = set()
    for agent in ("language", "stories", "vision"):
        found = sorted(path.parent.name for path in (folder / agent).glob("*/config.pbtxt"))
        if found:
            models.update(found)
            console.print(f"Engine host [bold]{agent}[/] serves {', '.join(found)}", soft_wrap=True)
    return models


def _start_triton(stack: ExitStack, console: Console, folder: Path) -> None:
    """Start Triton with the adder, and write rules that give it half of that model's requests.

    Raises: DemoError.
    """
    import shutil

    from gateway.demo.processes import DemoError
    from gateway.demo.triton import TritonDiedError, TritonNotReadyError, TritonProcess, why_unavailable

    reason = why_unavailable()
    if reason is not None:
        raise DemoError(f"No Triton can be started here: {reason}")
    shutil.copytree(folder / "language" / "adder", folder / "triton" / "adder")
    try:
        with console.status("Starting Triton (from the nvidia-pytriton wheel, on the CPU)"):
            triton = stack.enter_context(TritonProcess.start(folder / "triton"))
            triton.wait_ready(_START_SECONDS)
    except (TritonDiedError, TritonNotReadyError, OSError) as error:
        raise DemoError(f"Triton did not start: {error}") from error
    (folder / "rules" / "05-triton.yaml").write_text(_BOTH.format(rest=triton.http_url, grpc=triton.grpc_url))
    console.print(f"Triton serves [bold]adder[/] too: half of its requests each, by an experiment ({triton.http_url})")


def _start_gateway(
    stack: ExitStack, folder: Path, rules: Path, more: Collection[str], redis: str, data_dir: Path
) -> _Gateway:
    """Start `pointsman serve` with more options, and wait until it serves. Redis' URL may contain a password: it is
    passed by the environment.

    Raises: DemoError where it does not start; its output has the reason.
    """
    from gateway.demo.processes import start

    ready = folder / "gateway.json"
    options = ["--rules", str(rules), "--ready-file", str(ready), "--drain-timeout", f"{_DRAIN_SECONDS:g}s"]
    options.append(f"--data-dir={data_dir}")
    process, result = start(
        stack,
        "The gateway",
        ["gateway", "serve", *options, *more],
        ready,
        within=_START_SECONDS,
        timeout=_STOP_SECONDS,
        variables={"POINTSMAN_REDIS": redis},
    )
    base, grpc, admin = (f"127.0.0.1:{result[port]}" for port in ("http", "grpc", "admin"))
    return _Gateway(process, f"http://{base}", grpc, f"http://{admin}", rules, data_dir)


def _print_next_steps(console: Console, gateway: _Gateway, models: Collection[str]) -> None:
    from gateway.demo.sample_requests import STORYTELLER

    base, admin, rules = gateway.base, gateway.admin, gateway.rules
    console.print("\n[bold]Where things are[/]")
    console.print(f"  inference   {base}/v2")
    console.print(f"  gRPC        {gateway.grpc} (both ports take both)")
    console.print(f"  the page    {admin}/  (the fleet live, explain, a playground; `pointsman page` signs in)")
    console.print(f"  metrics     {admin}/metrics")
    console.print(f"  rules       {rules} (edit it: the gateway notices)", soft_wrap=True)
    console.print("\n[bold]Try next[/]")
    if models:
        body = '{"text_input": "hello"}'
        console.print(f"  curl -i {base}/v2/models/text/generate -d '{body}'", soft_wrap=True)
    else:
        console.print(f"  curl -i {base}/v2", soft_wrap=True)
    if STORYTELLER in models:
        body = json.dumps(
            {"model": STORYTELLER, "messages": [{"role": "user", "content": "Tell me a story about an owl."}]}
        )
        console.print(f"  curl {base}/v1/chat/completions -d '{body}'", soft_wrap=True, markup=False)
    if find_spec("tritonclient") and find_spec("grpc"):
        call = 'get_model_metadata("adder")' if models else "get_server_metadata()"
        script = f'from tritonclient.grpc import *; print(InferenceServerClient("{gateway.grpc}").{call})'
        console.print(f"  {sys.executable} -c '{script}'", soft_wrap=True, markup=False)
    pointsman = Path(sys.executable).parent / "pointsman"
    for command in ("page", "engines"):
        console.print(f"  {pointsman} {command} --admin {admin} --data-dir {gateway.data_dir}", soft_wrap=True)
    console.print(f"  {pointsman} explain {rules} --model adder", soft_wrap=True)
