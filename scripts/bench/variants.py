"""Several Pointsman gateways with different rules, loaded in turn: the cost of each variant over the first one."""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from bench import command
from bench.cases import CASES, Loader
from bench.processes import Children, Ports, free_port
from bench.programs import Running, Site, start_on_port, start_pointsman
from bench.rounds import Cores, interleave
from bench.samples import Results, Sample
from bench.wrk import wrk_path

# The rules of a variant, given its name and the upstreams' ports.
Rules = Callable[[str, Ports], str]


def compare_variants(
    variants: Sequence[str],
    rules: Rules,
    cases: Sequence[str],
    rounds: int,
    seconds: float,
    progress: Progress,
    options: Callable[[str, Path], Sequence[str]] = lambda name, folder: (),
    models: Sequence[str] = ("",),
) -> Results:
    """Start a gateway for each variant, and load them in turn. `options` are those of a variant with this folder;
    `models` are those of each upstream, with commas between them; the ports of further upstreams are `upstream-2` and
    so on."""
    cores, results = Cores.split(), Results()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pointsman-bench-")))
        children = stack.enter_context(Children(folder))
        upstreams: dict[str, int] = {}
        pids = []
        for number, listed in enumerate(models, 1):
            port, name = free_port(), f"upstream-{number}"
            upstreams[name] = port
            argv = (sys.executable, "-m", "bench.upstream", "--port", str(port), "--models", listed)
            upstream = start_on_port(Site(children, folder, cores.others), name, argv, port, upstreams).process
            assert upstream is not None
            pids.append(upstream.pid)
        upstreams["small"] = upstreams["bulk"] = upstreams["upstream-1"]
        running = []
        for name in variants:
            own = folder / name.replace(" ", "-").replace("%", "percent")
            own.mkdir()
            site = Site(children, own, cores.proxy)
            started = start_pointsman(
                site,
                rules(name, upstreams),
                lambda ports: dict.fromkeys(upstreams, ports["http"]),
                options=options(name, own),
            )
            running.append(Running(name, started.ports, started.process, started.worker))
        loader = Loader(
            seconds=seconds,
            connections=32,
            use_wrk=wrk_path() is not None,
            cores=cores.others,
            upstream_pids=pids,
            results=results,
        )
        interleave([CASES[name] for name in cases], running, rounds, loader.sample, progress, results)
    return results


def tell_variants(
    found: Results, variants: Sequence[str], cases: Sequence[str], key: str, heading: str, written: Path
) -> None:
    """Print the figures of each case and variant, and write them as JSON; `key` is the name of the variants there."""
    rows = [row for case in cases for row in _rows(found.samples, variants, case, key)]
    table = Table("case", heading, "worker µs/request", "more than none", "all processes", "requests/s")
    for row in rows:
        table.add_row(
            row["case"],
            row[key],
            f"{row['worker_us']:.1f}",
            f"{row['more_us']:+.1f}",
            f"{row['all_us']:.1f}",
            f"{row['per_second']:,.0f}",
        )
    command.console.print(table)
    written.parent.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(rows, indent=1) + "\n")


def _rows(samples: Sequence[Sample], variants: Sequence[str], case: str, key: str) -> list[dict[str, Any]]:
    """The figure of interest is the median of the differences within a round: what slows the machine slows both."""
    rows: list[dict[str, Any]] = []
    first = {sample.round: sample for sample in samples if (sample.case, sample.proxy) == (case, variants[0])}
    for name in variants:
        found = [sample for sample in samples if (sample.case, sample.proxy) == (case, name)]
        worker = statistics.median(sample.worker_cpu_us or 0.0 for sample in found)
        differences = [
            (sample.worker_cpu_us or 0.0) - (first[sample.round].worker_cpu_us or 0.0)
            for sample in found
            if sample.round in first
        ]
        rows.append(
            {
                "case": case,
                key: name,
                "worker_us": worker,
                "more_us": statistics.median(differences),
                "all_us": statistics.median(sample.cpu_us or 0.0 for sample in found),
                "per_second": statistics.median(sample.units_per_second for sample in found),
            }
        )
    return rows
