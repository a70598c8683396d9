"""`pointsman up`: the demo. A real engine, the gateway before it, real requests through both."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

_START_SECONDS = 60.0

_RULES = """\
# Written by `pointsman up`. Routes are tried from top to bottom; the first that matches wins.
version: 1
engines:
  triton:
    protocol: kserve
    endpoints: ["{url}"]
routes:
  - name: renamed
    match: {{model: sum-and-difference}}
    engine: triton
    model: adder
  - name: everything-else
    engine: triton
"""


def up(
    engine: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Put this running V2 engine behind the gateway instead of starting a Triton."),
    ] = None,
    http_port: Annotated[int, typer.Option(help="The gateway's inference port; 0 takes a free one.")] = 8000,
    admin_port: Annotated[int, typer.Option(help="Its port for metrics; 0 takes a free one.")] = 8002,
    once: Annotated[bool, typer.Option("--once", help="Stop after the sample requests.")] = False,
) -> int:
    """Start a demo: a real Triton with two sample models, the gateway before it, and requests through both.

    Everything stops with Ctrl-C.
    """
    console = Console(highlight=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with ExitStack() as stack:
        try:
            url = engine or _start_triton(stack, console)
            if url is None:
                return 1
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-up-")))
            told = _start_gateway(stack, console, folder, url, http_port, admin_port)
            if told is None:
                return 1
            base, admin = (f"http://127.0.0.1:{told[name]}" for name in ("http", "admin"))
            if engine:
                _ask_about_the_fleet(console, base)
            else:
                _ask_the_samples(console, base)
            _tell_what_is_next(console, base, admin, folder / "rules.yaml", engine is None)
            if not once:
                console.print("\nCtrl-C stops everything.")
                signal.pause()
        except KeyboardInterrupt:
            console.print("\nStopping.")
    return 0


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _start_triton(stack: ExitStack, console: Console) -> str | None:
    from gateway.demo.triton import SAMPLE_MODELS, TritonDiedError, TritonNotReadyError, TritonProcess, why_unavailable

    reason = why_unavailable()
    if reason is not None:
        console.print(f"[red]No Triton can be started here:[/] {reason}", soft_wrap=True)
        console.print("With an engine that runs elsewhere: pointsman up --engine http://HOST:8000")
        return None
    try:
        with console.status("Starting Triton (from the nvidia-pytriton wheel, on the CPU) with two sample models"):
            triton = stack.enter_context(TritonProcess.start(SAMPLE_MODELS))
            triton.wait_ready(_START_SECONDS)
    except (TritonDiedError, TritonNotReadyError) as error:
        console.print(f"[red]{error}[/]", soft_wrap=True)
        return None
    console.print(f"Triton serves [bold]adder[/] and [bold]text[/] on {triton.http_url}")
    return triton.http_url


def _start_gateway(
    stack: ExitStack, console: Console, folder: Path, engine: str, http_port: int, admin_port: int
) -> dict[str, Any] | None:
    """Start `pointsman serve` as a child; what its ready file tells, None where it did not start (it says why)."""
    rules, ready = folder / "rules.yaml", folder / "ready.json"
    rules.write_text(_RULES.format(url=engine))
    ports = ("--http-port", str(http_port), "--admin-port", str(admin_port))
    command = (sys.executable, "-m", "gateway", "serve", "--rules", str(rules), *ports, "--ready-file", str(ready))
    # A session of its own: Ctrl-C comes to us alone, and the gateway drains when we say so.
    gateway = subprocess.Popen(command, start_new_session=True)
    stack.callback(_stop, gateway)
    deadline = time.monotonic() + _START_SECONDS
    while not ready.exists():
        if gateway.poll() is not None or time.monotonic() > deadline:
            console.print("[red]The gateway did not start; see above.[/]")
            return None
        time.sleep(0.05)
    told: dict[str, Any] = json.loads(ready.read_text())
    return told


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _ask_the_samples(console: Console, base: str) -> None:
    """Real requests by Triton's own client, and one as curl would send it."""
    import httpx
    import numpy
    from tritonclient.http import InferenceServerClient, InferInput

    client = InferenceServerClient(base.removeprefix("http://"))
    tensors = {"a": numpy.array([[1, 2, 3]], numpy.int32), "b": numpy.array([[10, 20, 30]], numpy.int32)}
    for model in ("adder", "sum-and-difference"):
        inputs = [InferInput(name, list(data.shape), "INT32") for name, data in tensors.items()]
        for each, data in zip(inputs, tensors.values(), strict=True):
            each.set_data_from_numpy(data)
        result = client.infer(model, inputs)
        response = result.get_response()
        console.print(f"\n[bold]infer {model}[/]  a=[1 2 3] b=[10 20 30]  (tritonclient, binary tensors)")
        for output in response["outputs"]:
            console.print(f"  {output['name']} = {result.as_numpy(output['name'])[0]}  from '{response['model_name']}'")
    client.close()
    reply = httpx.post(f"{base}/v2/models/text/generate", json={"text_input": "one url for every engine"}, timeout=30)
    console.print("\n[bold]generate text[/]  'one url for every engine'")
    console.print(f"  {reply.json().get('text_output', reply.text)!r}, by route {reply.headers['x-pointsman-route']!r}")


def _ask_about_the_fleet(console: Console, base: str) -> None:
    import httpx

    index = httpx.post(f"{base}/v2/repository/index", timeout=30)
    console.print(f"\n[bold]models behind the gateway[/] ({index.status_code})")
    console.print(f"  {index.text}", soft_wrap=True)


def _tell_what_is_next(console: Console, base: str, admin: str, rules: Path, has_samples: bool) -> None:
    console.print("\n[bold]Where things are[/]")
    console.print(f"  inference   {base}/v2")
    console.print(f"  metrics     {admin}/metrics")
    console.print(f"  rules       {rules} (edit it: the gateway notices)", soft_wrap=True)
    console.print("\n[bold]Try next[/]")
    if has_samples:
        body = '{"text_input": "hello"}'
        console.print(f"  curl -i {base}/v2/models/text/generate -d '{body}'", soft_wrap=True)
    console.print(f"  {Path(sys.executable).parent / 'pointsman'} engines --admin {admin}", soft_wrap=True)
    console.print(f"  {Path(sys.executable).parent / 'pointsman'} explain {rules} --model adder", soft_wrap=True)
