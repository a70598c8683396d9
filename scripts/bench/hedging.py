"""Latencies with and without hedging: an engine of three endpoints, one of which is slow.

    python scripts/bench/hedging.py          # about two minutes
    python scripts/bench/hedging.py --rate 100 --seconds 40

Each endpoint answers in 20 ms (15 to 25 ms). `stalls`: one of them takes 300 ms more for an eighth of its requests, as
in a pause. `always slow`: one of them takes 100 ms for each. Load is an open loop of small V2 inferences.
"""

import sys
from pathlib import Path

# Started by its path, Python looks for modules in this folder first, where some have names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import asyncio  # noqa: E402
import os  # noqa: E402
import re  # noqa: E402
import urllib.request  # noqa: E402
from tempfile import TemporaryDirectory  # noqa: E402
from typing import Annotated  # noqa: E402

import typer  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from bench.overload_load import OpenLoop  # noqa: E402
from bench.processes import SCRIPTS, Children, free_port, raise_file_limit  # noqa: E402
from bench.programs import Site, start_on_port, start_pointsman  # noqa: E402

_BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'
_WARMUP = 4.0
_SHARES = (0.5, 0.9, 0.95, 0.99, 0.999)

# Seconds of the slow endpoint, the share of its requests that stall, and for how long.
CASES = {"stalls": (0.02, 0.125, 0.3), "always slow": (0.1, 0.0, 0.0)}

_RULES = """version: 1
engines:
  triton:
    endpoints: [{urls}]
    models: {{source: none}}
    retry: {{idempotent: infer}}
    {hedging}
routes: [{{name: all, engine: triton}}]
"""


def measure(case: str, hedging: str, rate: float, seconds: float, site: Site) -> tuple[list[float], str]:
    """The latencies of all requests after the warm-up, and what became of the hedges."""
    ports = []
    for number in range(3):
        port = free_port()
        slow, stalls, stall = CASES[case] if not number else (0.02, 0.0, 0.0)
        module = [sys.executable, "-m", "bench.overload_upstream", str(port), "64", str(slow), str(stalls), str(stall)]
        start_on_port(site, f"engine-{number}", module, port, {}, {"PYTHONPATH": os.fspath(SCRIPTS)})
        ports.append(port)
    urls = ", ".join(f"'http://127.0.0.1:{port}'" for port in ports)
    ours = start_pointsman(site, _RULES.format(urls=urls, hedging=hedging), dict)
    load = OpenLoop(ours.ports["http"], "/v2/models/m/infer", lambda: _BODY, 10.0)
    asyncio.run(load.run([(_WARMUP + seconds, rate)]))
    assert all(reply.status == 200 for reply in load.replies), {reply.status for reply in load.replies}
    with urllib.request.urlopen(f"http://127.0.0.1:{ours.ports['admin']}/metrics") as reply:
        text = reply.read().decode()
    found = re.findall(r'^pointsman_hedges_total{.*outcome="(\w+)"} (\S+)$', text, re.MULTILINE)
    hedges = ", ".join(f"{outcome} {float(number) / len(load.replies):.1%}" for outcome, number in sorted(found))
    return [reply.seconds for reply in load.replies if reply.due > _WARMUP], hedges


def main(
    rate: Annotated[float, typer.Option(min=1.0, help="Requests in a second.")] = 60.0,
    seconds: Annotated[float, typer.Option(min=5.0, help="Of each measurement.")] = 20.0,
) -> None:
    """Measure latencies with one slow endpoint of three, with and without hedging."""
    raise_file_limit()
    table = Table("slow endpoint", "hedging", *(f"p{100 * share:g} ms" for share in _SHARES), "hedges")
    for case in CASES:
        for hedging in ("", "hedging: {}"):
            with TemporaryDirectory() as folder, Children(Path(folder)) as children:
                latencies, hedges = measure(case, hedging, rate, seconds, Site(children, Path(folder), None))
            latencies.sort()
            shown = [
                f"{1000 * latencies[min(len(latencies) - 1, int(len(latencies) * share))]:.0f}" for share in _SHARES
            ]
            table.add_row(case, "on" if hedging else "off", *shown, hedges)
    Console(width=160).print(f"load average {os.getloadavg()}")
    Console(width=160).print(table)


if __name__ == "__main__":
    typer.run(main)
