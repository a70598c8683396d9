"""`pointsman up`: the demo. A real engine, the gateway before it, real requests through both."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    import httpx

_START_SECONDS = 60.0
_DRAIN_SECONDS = 3.0  # a demo's requests are short, and whoever presses Ctrl-C waits for them
# SIGTERM, and once more, which stops it at once: its workers end with it only where it ends by itself.
_STOP_PATIENCE_SECONDS = (_DRAIN_SECONDS + 10.0, 5.0)
# SIGHUP comes when the terminal is closed; the children have sessions of their own and would stay.
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_RULES = """\
# Written by `pointsman up`. Routes are tried from top to bottom; the first that matches wins.
version: 1
engines:
  triton:
    protocol: kserve
    endpoints: [{endpoint}]
routes:
  - name: renamed
    match: {{model: sum-and-difference}}
    engine: triton
    model: adder
  - name: everything-else
    engine: triton
"""


class _DemoError(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class _Gateway:
    """The gateway that runs, and where it is."""

    process: subprocess.Popen[bytes]
    base: str
    grpc: str
    admin: str
    rules: Path


def up(
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Put this running V2 engine, http://... or grpc://..., behind the gateway instead of a Triton.",
        ),
    ] = None,
    http_port: Annotated[int, typer.Option(help="The gateway's inference port; 0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Its second one, for gRPC clients; 0 takes a free one.")] = 8001,
    admin_port: Annotated[int, typer.Option(help="Its port for metrics; 0 takes a free one.")] = 8002,
    once: Annotated[bool, typer.Option("--once", help="Stop after the sample requests.")] = False,
) -> int:
    """Start a demo: a real Triton with two sample models, the gateway before it, and requests through both.

    Everything stops with Ctrl-C.
    """
    console = Console(highlight=False)
    with ExitStack() as stack:
        _take_signals(stack)
        try:
            endpoint = f'"{engine}"' if engine else _start_triton(stack, console)
            ports = {"--http-port": http_port, "--grpc-port": grpc_port, "--admin-port": admin_port}
            gateway = _start_gateway(stack, endpoint, ports)
            if engine:
                _ask_about_the_engine(console, gateway)
            else:
                _ask_the_samples(console, gateway)
            _tell_what_is_next(console, gateway, has_samples=engine is None)
            if not once:
                console.print("\nCtrl-C stops everything.")
                raise _DemoError(f"The gateway ended with {gateway.process.wait()}.")
        except KeyboardInterrupt:
            console.print("\nStopping.")
            return 1 if once else 0  # interrupted, a single round has not been made
        except _DemoError as error:
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
    """From here on only stopping is left, and a second Ctrl-C must not cut it short."""
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _start_triton(stack: ExitStack, console: Console) -> str:
    """Start it, and return its address as rules write it.

    Raises: _DemoError.
    """
    from gateway.demo.triton import SAMPLE_MODELS, TritonDiedError, TritonNotReadyError, TritonProcess, why_unavailable

    elsewhere = "With an engine that runs elsewhere: pointsman up --engine http://HOST:8000"
    reason = why_unavailable()
    if reason is not None:
        raise _DemoError(f"No Triton can be started here: {reason}\n{elsewhere}")
    try:
        with console.status("Starting Triton (from the nvidia-pytriton wheel, on the CPU) with two sample models"):
            triton = stack.enter_context(TritonProcess.start(SAMPLE_MODELS))
            triton.wait_ready(_START_SECONDS)
    except (TritonDiedError, TritonNotReadyError, OSError) as error:
        raise _DemoError(f"Triton did not start: {error}\n{elsewhere}") from error
    console.print(f"Triton serves [bold]adder[/] and [bold]text[/] on {triton.http_url}, gRPC on {triton.grpc_url}")
    return f'{{url: "{triton.http_url}", grpc: "{triton.grpc_url}"}}'


def _start_gateway(stack: ExitStack, endpoint: str, ports: Mapping[str, int]) -> _Gateway:
    """Start `pointsman serve` as a child, and wait for its ready file.

    Raises: _DemoError where it does not start; it has said why itself.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-up-")))
    rules, ready = folder / "rules.yaml", folder / "ready.json"
    rules.write_text(_RULES.format(endpoint=endpoint))
    options = ("--rules", str(rules), "--ready-file", str(ready), "--drain-timeout", f"{_DRAIN_SECONDS:g}s")
    listen = (f"{option}={port}" for option, port in ports.items())
    command = (sys.executable, "-m", "gateway", "serve", *options, *listen)
    # A session of its own: Ctrl-C comes to us alone, and the gateway drains when we say so.
    gateway = subprocess.Popen(command, start_new_session=True)
    stack.callback(_stop, gateway)
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if gateway.poll() is not None or time.monotonic() > deadline:
            raise _DemoError("The gateway did not start; see above.")
        time.sleep(0.05)
    told = json.loads(ready.read_text())
    base, grpc, admin = (f"127.0.0.1:{told[port]}" for port in ("http", "grpc", "admin"))
    return _Gateway(gateway, f"http://{base}", grpc, f"http://{admin}", rules)


def _stop(process: subprocess.Popen[bytes]) -> None:
    for patience in _STOP_PATIENCE_SECONDS:
        process.terminate()
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()


def _ask_the_samples(console: Console, gateway: _Gateway) -> None:
    """Real requests by Triton's own client, and one as curl would send it.

    Raises: _DemoError.
    """
    from tritonclient.utils import InferenceServerException

    try:
        _infer_by_rest(console, gateway, "adder")
        _infer_by_grpc(console, gateway, "sum-and-difference")
    except (InferenceServerException, OSError) as error:
        raise _DemoError(f"A sample request failed: {error}") from error
    text = "one url for every engine"
    reply = _ask(gateway, "POST", "/v2/models/text/generate", {"text_input": text})
    if not reply.is_success:
        raise _DemoError(f"A sample request failed: {reply.status_code} {reply.text}")
    console.print(f"\n[bold]generate text[/]  {text!r}")
    console.print(f"  {reply.json()['text_output']!r}, by route {reply.headers['x-pointsman-route']!r}", markup=False)


def _infer_by_rest(console: Console, gateway: _Gateway, model: str) -> None:
    from tritonclient import http

    with http.InferenceServerClient(gateway.base.removeprefix("http://")) as client:
        result = client.infer(model, _inputs(http))
    _show(console, f"infer {model}", "tritonclient.http", result, result.get_response()["model_name"])


def _infer_by_grpc(console: Console, gateway: _Gateway, model: str) -> None:
    from tritonclient import grpc

    with grpc.InferenceServerClient(gateway.grpc) as client:
        result = client.infer(model, _inputs(grpc))
    _show(console, f"infer {model}", "tritonclient.grpc", result, result.get_response().model_name)


def _inputs(client: Any) -> list[Any]:
    """The adder's, as one of Triton's two clients has them."""
    import numpy

    made = []
    for name, values in (("a", [[1, 2, 3]]), ("b", [[10, 20, 30]])):
        data = numpy.array(values, numpy.int32)
        made.append(client.InferInput(name, list(data.shape), "INT32"))
        made[-1].set_data_from_numpy(data)
    return made


def _show(console: Console, title: str, client: str, result: Any, model: str) -> None:
    console.print(f"\n[bold]{title}[/]  a=[1 2 3] b=[10 20 30]  ({client})")
    for name in ("sum", "diff"):
        console.print(f"  {name} = {result.as_numpy(name)[0]}  from '{model}'", markup=False)


def _ask_about_the_engine(console: Console, gateway: _Gateway) -> None:
    """What can be asked without knowing a model: the metadata, which the gateway tells of itself, and the models,
    which the engine tells; one that does not list them may say so.

    Raises: _DemoError.
    """
    for title, method, path in (
        ("server metadata", "GET", "/v2"),
        ("models behind the gateway", "POST", "/v2/repository/index"),
    ):
        reply = _ask(gateway, method, path)
        console.print(f"\n[bold]{title}[/]  {method} {path} ({reply.status_code})")
        console.print(f"  {reply.text}", soft_wrap=True, markup=False)


def _ask(gateway: _Gateway, method: str, path: str, body: object = None) -> httpx.Response:
    """The engine's reply, whatever it says.

    Raises: _DemoError where no engine has answered.
    """
    import httpx

    try:
        reply = httpx.request(method, gateway.base + path, json=body, timeout=30, trust_env=False)
    except httpx.HTTPError as error:
        raise _DemoError(f"{method} {path} is not answered: {error}") from error
    if "x-pointsman-reason" in reply.headers:
        raise _DemoError(f"{method} {path} is answered {reply.status_code} by the gateway itself: {reply.text}")
    return reply


def _tell_what_is_next(console: Console, gateway: _Gateway, has_samples: bool) -> None:
    base, admin, rules = gateway.base, gateway.admin, gateway.rules
    console.print("\n[bold]Where things are[/]")
    console.print(f"  inference   {base}/v2")
    console.print(f"  gRPC        {gateway.grpc} (both ports take both)")
    console.print(f"  metrics     {admin}/metrics")
    console.print(f"  engines     {admin}/engines")
    console.print(f"  rules       {rules} (edit it: the gateway notices)", soft_wrap=True)
    console.print("\n[bold]Try next[/]")
    if has_samples:
        body = '{"text_input": "hello"}'
        console.print(f"  curl -i {base}/v2/models/text/generate -d '{body}'", soft_wrap=True)
    else:
        console.print(f"  curl -i {base}/v2", soft_wrap=True)
    if find_spec("tritonclient") and find_spec("grpc"):
        asked = 'get_model_metadata("adder")' if has_samples else "get_server_metadata()"
        script = f'from tritonclient.grpc import *; print(InferenceServerClient("{gateway.grpc}").{asked})'
        console.print(f"  {sys.executable} -c '{script}'", soft_wrap=True, markup=False)
    console.print(f"  {Path(sys.executable).parent / 'pointsman'} engines --admin {admin}", soft_wrap=True)
    console.print(f"  {Path(sys.executable).parent / 'pointsman'} explain {rules} --model adder", soft_wrap=True)
