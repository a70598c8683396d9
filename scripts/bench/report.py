"""The output of a run: a table for each case, the goals, and everything as JSON."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.medians import MEGABYTE, Verdict, added_p50, median
from bench.samples import Case, Results

NOT_MEASURED = "-"


def _number(value: float | None, digits: int = 1) -> str:
    return NOT_MEASURED if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.0%}"


def _ratio(value: float | None, base: float | None) -> str:
    return f"{value / base:.2f}" if value is not None and base else NOT_MEASURED


def proxies_of(results: Results, case: str) -> list[str]:
    return list(dict.fromkeys(sample.proxy for sample in results.samples if sample.case == case and sample.round == 0))


def case_table(results: Results, case: Case) -> Table:
    """One case: a row for each proxy, medians over the rounds."""
    table = Table(title=f"{case.name}: {case.title}", title_justify="left", title_style="bold")
    table.add_column("proxy")
    heads = [f"CPU µs/{case.unit}", "worker alone", "of Envoy's", f"{case.unit}s/s", "of Envoy's"]
    heads += ["MB/s"] if case.body_bytes else []
    heads += ["p50 µs", "p99 µs"] + (["p99.9 µs"] if case.share else []) + (["added p50 µs"] if case.serial else [])
    heads += ["proxy busy", "upstream busy"]
    for head in heads:
        table.add_column(head, justify="right")
    envoy_cpu = median(results, case.name, "envoy", lambda sample: sample.cpu_us)
    envoy_rate = median(results, case.name, "envoy", lambda sample: sample.units_per_second)
    for proxy in proxies_of(results, case.name):

        def figure(name: str, proxy: str = proxy) -> float | None:
            return median(results, case.name, proxy, lambda sample: getattr(sample, name))

        cells = [
            _number(figure("cpu_us")),
            _number(figure("worker_cpu_us")),
            _ratio(figure("cpu_us"), envoy_cpu),
            _number(figure("units_per_second"), 0),
            _ratio(figure("units_per_second"), envoy_rate),
        ]
        cells += [_number(figure("megabytes_per_second"), 0)] if case.body_bytes else []
        cells += [_number(figure("p50_us"), 0), _number(figure("p99_us"), 0)]
        cells += [_number(figure("p999_us"), 0)] if case.share else []
        cells += [_number(added_p50(results, proxy))] if case.serial else []
        cells += [_percent(figure("busy")), _percent(figure("upstream_busy"))]
        table.add_row(proxy, *cells, style="bold" if proxy == "ours" else None)
    return table


def memory_table(results: Results) -> Table:
    """Resident memory in MB, of the worker alone unless the title says otherwise."""
    table = Table(title="memory: MB resident", title_justify="left", title_style="bold")
    table.add_column("proxy")
    first = results.memory[0]
    streamed = f"{first.streamed_bytes / 1e9:.1f} GB answer"
    for head in (
        "idle worker",
        "idle tree",
        f"{first.connections:,} idle connections add",
        f"{streamed} adds, fast reader",
        "slow reader",
        "fast reader MB/s",
    ):
        table.add_column(head, justify="right")
    for sample in results.memory:
        figures = (sample.idle, sample.idle_tree, sample.connections_added, sample.fast_stream_added)
        cells = [_number(figure / MEGABYTE) for figure in (*figures, sample.slow_stream_added)]
        speed = sample.streamed_bytes / sample.fast_stream_seconds / 1e6
        style = "bold" if sample.proxy == "ours" else None
        table.add_row(sample.proxy, *cells, _number(speed, 0), style=style)
    return table


def goals_table(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="the product's goals", title_justify="left", title_style="bold")
    for head in ("", "goal", "ours", "limit"):
        table.add_column(head, justify="right" if head in ("ours", "limit") else "left")
    words = {True: "[green]PASS[/]", False: "[bold red]FAIL[/]", None: "[dim]not measured[/]"}
    for verdict in verdicts:
        cells = (f"{_number(value)} {verdict.unit}" for value in (verdict.measured, verdict.limit))
        table.add_row(words[verdict.passed], verdict.goal, *cells)
    return table


def show(results: Results, cases: Iterable[Case], verdicts: Sequence[Verdict], console: Console) -> None:
    for case in cases:
        if proxies_of(results, case.name):
            console.print(case_table(results, case))
        for failure in results.failures:
            if failure.case == case.name:
                text = f"{case.name} through {failure.proxy} failed: {failure.why}"
                console.print(text, style="bold red", markup=False, highlight=False)
    if results.memory:
        console.print(memory_table(results))
    console.print(goals_table(verdicts))


def write_json(results: Results, verdicts: Sequence[Verdict], environment: dict[str, Any], path: Path) -> None:
    """Everything: the machine, each sample of each round, and the verdicts."""
    document = {
        "environment": environment,
        **dataclasses.asdict(results),
        "goals": [dataclasses.asdict(verdict) | {"passed": verdict.passed} for verdict in verdicts],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
