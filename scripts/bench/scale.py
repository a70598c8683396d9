"""What many routes, engines and endpoints cost: to start, to reload, to check, in memory, and for each request.

    python scripts/bench/scale.py                    # 10 to 10,000 routes; about two minutes
    python scripts/bench/scale.py --sizes 10,1000    # a glance

Rules of n routes by exact model names with a header, a tenth as many engines and half as many endpoints, all of which
are probed each two seconds. A gateway with one worker serves by them and gets requests for 50 models in turn; then one
route changes. CPU seconds, not wall-clock time: other work on the machine hardly affects them. Rules of n globs are
checked by `pointsman check`. Exits with 1 if a goal is missed.
"""

import json
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

# Started by its path, Python looks for modules in this folder first, where some have the names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command, environment  # noqa: E402
from bench.processes import BenchError, Children, cpu_seconds, free_port, raise_file_limit  # noqa: E402
from bench.programs import Site, start_on_port  # noqa: E402
from bench.scale_worker import VARIABLE  # noqa: E402

# Of so many models, spread over all routes: more would measure how connections to engines are opened.
MODELS = 50
REQUESTS, WARMUP_REQUESTS = 3_000, 1_500
DEADLINE_SECONDS = 120.0
SETTLE_SECONDS = 4.0
_ANSWER = re.compile(rb"HTTP/1\.1 (\d+) .*?\r\n\r\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one size; CPU in seconds unless the name says otherwise."""

    routes: int
    engines: int
    endpoints: int
    start_control_cpu: float
    start_worker_cpu: float
    control_mb: float
    worker_mb: float
    probes_cpu_percent: float  # of the control process
    descriptors: int
    request_us: float
    reload_worker_cpu: float
    longest_pause_ms: float
    check_globs_cpu: float


TITLES = {
    "start_control_cpu": "start: control process, CPU s",
    "start_worker_cpu": "start: worker, CPU s",
    "control_mb": "control process, MB",
    "worker_mb": "worker, MB",
    "probes_cpu_percent": "probes: CPU, %",
    "descriptors": "probes: descriptors",
    "request_us": "request: CPU µs",
    "reload_worker_cpu": "reload: worker, CPU s",
    "longest_pause_ms": "reload: longest pause, CPU ms",
    "check_globs_cpu": "check of as many globs, CPU s",
}
# At 10,000 routes; of globs, at 2,000
GOALS = {"start_worker_cpu": 3.0, "longest_pause_ms": 5.0, "check_globs_cpu": 1.0}
GOAL_GLOBS = 2_000


def rules(routes: int, port: int, changed: str = "") -> str:
    """Rules of so many routes; `changed` is the last route's model."""
    engines, endpoints = max(1, routes // 10), max(1, routes // 2)
    each = endpoints // engines if sys.platform == "linux" else 1  # elsewhere 127.0.0.1 is the only address
    lines = ["version: 1", "engines:"]
    for engine in range(engines):
        numbers = range(engine * each, (engine + 1) * each) if each > 1 else range(1)
        urls = [f"'http://127.0.{number // 250}.{number % 250 + 1}:{port}'" for number in numbers]
        lines.append(f"  engine-{engine}: {{endpoints: [{', '.join(urls)}]}}")
    lines.append("routes:")
    for route in range(routes):
        model = changed if changed and route == routes - 1 else f"model-{route}"
        lines += [f"  - name: route-{route}", f"    match: {{model: {model}, header: {{x-tier: gold}}}}"]
        lines.append(f"    engine: engine-{route % engines}")
    return "\n".join(lines) + "\n"


def globs(number: int) -> str:
    lines = ["version: 1", "engines: {it: {endpoints: ['http://127.0.0.1:1']}}", "routes:"]
    lines += [f"  - {{name: route-{at}, match: {{model: 'model-{at}-*'}}, engine: it}}" for at in range(number)]
    return "\n".join(lines) + "\n"


class Gateway:
    """A gateway in a folder of its own; `ready` has its ports."""

    def __init__(self, text: str, folder: Path, children: Children) -> None:
        self._pauses = folder / "pauses"
        self._rules = folder / "rules.yaml"
        self._rules.write_text(text)
        ready = folder / "ready"
        options = ["--rules", self._rules, "--ready-file", ready, "--data-dir", folder, "--redis", "off"]
        ports = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
        argv = [sys.executable, "-m", "bench.scale_worker", "serve", *options, *ports]
        self.control = children.spawn("gateway", argv, None, {VARIABLE: str(self._pauses)})
        _wait(lambda: self._is_ready(children, ready), "the gateway does not serve")
        self.ports = json.loads(ready.read_text())
        self.worker = next(child for child in self.control.children() if "bench.scale_worker" in child.cmdline())

    def _is_ready(self, children: Children, ready: Path) -> bool:
        children.require_alive(self.control)
        return ready.exists()

    def change(self, text: str) -> None:
        """Put other rules in force; returns when the worker serves by them and has freed the old ones."""
        partial = self._rules.with_suffix(".partial")
        partial.write_text(text)
        partial.rename(self._rules)
        number = self._lines()[-1]["rules"]
        _wait(lambda: self._lines()[-1]["rules"] > number, "the rules are not in force")
        time.sleep(SETTLE_SECONDS)

    def longest_pause_ms(self, since: int) -> float:
        return max(line["cpu_ms"] for line in self._lines()[since:])

    @property
    def num_reports(self) -> int:
        return len(self._lines())

    def _lines(self) -> list[dict[str, float]]:
        return [json.loads(line) for line in self._pauses.read_text().splitlines()]


def _wait(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_so():
        if time.monotonic() > end:
            raise BenchError(f"{what} within {DEADLINE_SECONDS:g} s")
        time.sleep(0.02)


def request_us(gateway: Gateway, routes: int) -> float:
    """CPU microseconds of the worker for a request; each head has a model and a number of its own."""
    with socket.create_connection(("127.0.0.1", gateway.ports["http"])) as connection:
        requests = _requests(routes)
        for head in islice(requests, WARMUP_REQUESTS):  # each endpoint gets its connection
            _ask(connection, head)
        before = cpu_seconds(gateway.worker.pid)
        for head in islice(requests, REQUESTS):
            _ask(connection, head)
        return (cpu_seconds(gateway.worker.pid) - before) / REQUESTS * 1e6


def _requests(routes: int) -> Iterator[bytes]:
    number = 0
    while True:
        number += 1
        model = number % MODELS * routes // MODELS
        head = f"POST /v2/models/model-{model}/infer HTTP/1.1\r\nHost: a\r\nX-Tier: gold\r\nX-Number: {number}\r\n"
        yield f"{head}Content-Length: 2\r\n\r\n{{}}".encode()


def _ask(connection: socket.socket, request: bytes) -> None:
    connection.sendall(request)
    reply = b""
    while not reply.endswith(b"{}"):
        data = connection.recv(65_536)
        if not data:
            raise BenchError(f"the gateway closed the connection after {reply[:200]!r}")
        reply += data
    found = _ANSWER.match(reply)
    if found is None or found[1] != b"200":
        raise BenchError(f"the gateway answered {reply[:300]!r}")


def check_cpu(text: str, folder: Path) -> float:
    """CPU seconds of `pointsman check`."""
    file = folder / "globs.yaml"
    file.write_text(text)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "gateway", "check", str(file)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="pointsman-bench-", ignore_cleanup_errors=True)  # workers end a little later


def measure(routes: int, port: int, children: Children) -> Sample:
    with _folder() as name:
        folder = Path(name)
        gateway = Gateway(rules(routes, port), folder, children)
        start = [cpu_seconds(process.pid) for process in (gateway.control, gateway.worker)]
        control_before, began = cpu_seconds(gateway.control.pid), time.monotonic()
        time.sleep(SETTLE_SECONDS)
        probing = (cpu_seconds(gateway.control.pid) - control_before) / (time.monotonic() - began)
        num_descriptors = gateway.control.num_fds()
        memory = [process.memory_info().rss / 1e6 for process in (gateway.control, gateway.worker)]
        per_request = request_us(gateway, routes)
        reports, before = gateway.num_reports, cpu_seconds(gateway.worker.pid)
        gateway.change(rules(routes, port, changed="another"))
        reload_cpu, pause = cpu_seconds(gateway.worker.pid) - before, gateway.longest_pause_ms(reports)
        children.stop(gateway.control)
        return Sample(
            routes,
            max(1, routes // 10),
            max(1, routes // 2),
            *start,
            *memory,
            probing * 100,
            num_descriptors,
            per_request,
            reload_cpu,
            pause,
            check_cpu(globs(routes), folder),
        )


def plot(samples: list[Sample], path: Path) -> None:
    """One panel per figure, both axes logarithmic."""
    sheet = Figure(figsize=(13, 6), layout="constrained")
    FigureCanvasAgg(sheet)
    for axis, (name, title) in zip(sheet.subplots(2, 5).flat, TITLES.items(), strict=True):
        axis.plot([each.routes for each in samples], [getattr(each, name) for each in samples], "o-", color="#c8442c")
        axis.set(xscale="log", yscale="log", xlabel="routes")
        axis.set_title(title, fontsize=9)
    sheet.savefig(path, dpi=130)


def main(
    sizes: Annotated[str, typer.Option(help="Numbers of routes, separated by commas.")] = "10,100,1000,3000,10000",
    results: command.ResultsFolder = command.RESULTS,
) -> None:
    """Measure what many routes cost."""
    command.end_by_signal()
    raise_file_limit()
    samples = []
    with _folder() as name, Children(Path(name)) as children:
        port = free_port()
        upstream = (sys.executable, "-m", "bench.scale_upstream", str(port))
        start_on_port(Site(children, Path(name), None), "upstream", upstream, port, {})
        for routes in map(int, sizes.split(",")):
            samples.append(measure(routes, port, children))
            command.console.print(f"{routes} routes are measured")
        globs_cpu = check_cpu(globs(GOAL_GLOBS), Path(name))
    table = Table("", *(f"{each.routes:,} routes" for each in samples), "goal")
    for field in fields(Sample):
        goal = GOALS.get(field.name)
        shown = [getattr(each, field.name) for each in samples]
        title = TITLES.get(field.name, field.name)
        table.add_row(title, *(f"{each:,.4g}" for each in shown), "" if goal is None else f"{goal:g}")
    command.console.print(table)
    command.console.print(f"check of {GOAL_GLOBS:,} globs: {globs_cpu:.2f} CPU s (goal {GOALS['check_globs_cpu']:g})")
    results.mkdir(parents=True, exist_ok=True)
    machine = environment.describe({}, [], {"sizes": sizes})
    found = {"environment": machine, "samples": [asdict(each) for each in samples]}
    (results / "scale.json").write_text(json.dumps(found, indent=1))
    plot(samples, results / "scale.png")
    last = samples[-1]
    is_missed = last.start_worker_cpu > GOALS["start_worker_cpu"] or last.longest_pause_ms > GOALS["longest_pause_ms"]
    raise typer.Exit(is_missed or globs_cpu > GOALS["check_globs_cpu"])


if __name__ == "__main__":
    typer.run(main)
