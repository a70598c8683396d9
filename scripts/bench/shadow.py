"""What a shadow costs: the gateway without, with a sample of 1 %, and with all requests, in turn on one machine.

    python scripts/bench/shadow.py              # about a minute
    python scripts/bench/shadow.py --quick      # a glance

The figure is CPU microseconds of the worker for one request, and of all processes of the gateway: the parity process,
which asks the candidate and compares, is one of them. The candidate is the canned engine that answers the clients.
"""

import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

# Started by its path, Python looks for modules in this folder first, where some have the names of libraries.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import typer  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from bench import command, configs  # noqa: E402
from bench.cases import CASES, Loader  # noqa: E402
from bench.processes import Children, Ports, free_port  # noqa: E402
from bench.programs import Running, Site, start_on_port, start_pointsman  # noqa: E402
from bench.rounds import Cores, interleave  # noqa: E402
from bench.samples import Results, Sample  # noqa: E402
from bench.wrk import wrk_path  # noqa: E402

SAMPLES = {"none": "", "1 %": "1%", "100 %": "100%", "every one": "100%, max_in_flight: 1000"}
MEASURED = ("small", "unique", "tensor")


def main(
    rounds: Annotated[int, typer.Option(min=1, max=50, help="Rounds of every case; medians are shown.")] = 5,
    seconds: Annotated[int, typer.Option(min=1, max=60, help="Length of one round of one gateway.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="One round of one second: a glance, not a figure.")] = False,
    results: Annotated[Path, typer.Option(metavar="FOLDER", help="Where shadow.json goes.")] = command.RESULTS,
) -> None:
    """Measure what a shadow costs a request."""
    command.end_by_signal()
    with Progress(console=command.console) as progress:
        found = carry_out(1 if quick else rounds, 1 if quick else seconds, progress)
    rows = [row for case in MEASURED for row in _rows(found.samples, case)]
    table = Table("case", "mirrored", "worker µs/request", "more than none", "all processes", "requests/s")
    for row in rows:
        table.add_row(
            row["case"],
            row["sample"],
            f"{row['worker_us']:.1f}",
            f"{row['more_us']:+.1f}",
            f"{row['all_us']:.1f}",
            f"{row['per_second']:,.0f}",
        )
    command.console.print(table)
    results.mkdir(parents=True, exist_ok=True)
    (results / "shadow.json").write_text(json.dumps(rows, indent=1) + "\n")


def carry_out(rounds: int, seconds: float, progress: Progress) -> Results:
    """Start a gateway for each sample, and load them in turn."""
    cores, results = Cores.split(), Results()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        port = free_port()
        upstreams = {"small": port, "bulk": port}
        argv = (sys.executable, "-m", "bench.upstream", "--port", str(port))
        upstream = start_on_port(Site(children, folder, cores.others), "upstream", argv, port, upstreams).process
        assert upstream is not None
        running = [_start(name, children, folder, cores, upstreams) for name in SAMPLES]
        loader = Loader(
            seconds=seconds,
            connections=32,
            use_wrk=wrk_path() is not None,
            cores=cores.others,
            upstream_pids=[upstream.pid],
        )
        interleave([CASES[name] for name in MEASURED], running, rounds, loader.sample, progress, results)
    return results


def _start(name: str, children: Children, folder: Path, cores: Cores, upstreams: Ports) -> Running:
    own = folder / name.replace(" ", "-").replace("%", "percent")
    own.mkdir()
    rules = configs.pointsman_rules(upstreams)
    if SAMPLES[name]:
        for engine in upstreams:
            shadow = f"engine: {engine}, shadow: {{engine: bulk, sample: {SAMPLES[name]}}}}}"
            rules = rules.replace(f"engine: {engine}}}", shadow)
    started = start_pointsman(
        Site(children, own, cores.proxy), rules, lambda ports: dict.fromkeys(upstreams, ports["http"])
    )
    return Running(name, started.ports, started.process, started.worker)


def _rows(samples: list[Sample], case: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in SAMPLES:
        found = [sample for sample in samples if (sample.case, sample.proxy) == (case, name)]
        worker = statistics.median(sample.worker_cpu_us or 0.0 for sample in found)
        rows.append(
            {
                "case": case,
                "sample": name,
                "worker_us": worker,
                "more_us": worker - rows[0]["worker_us"] if rows else 0.0,
                "all_us": statistics.median(sample.cpu_us or 0.0 for sample in found),
                "per_second": statistics.median(sample.units_per_second for sample in found),
            }
        )
    return rows


if __name__ == "__main__":
    typer.run(main)
