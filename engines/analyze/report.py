"""The results of an analysis: as table, JSON, CSV and picture, and its progress on a terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from engines.analyze.models import Candidate, Measurement
from engines.analyze.search import Recommendation, pareto_front
from engines.analyze.sweep import Sweep, SweepProgress

# A pipe has no width; rich would take 80 columns and fold the figures.
PIPE_COLUMNS = 240
_COLUMNS = (
    *("", "instances", "max batch", "delay µs", "preferred", "concurrency", "inferences/s"),
    *("p50 ms", "p90 ms", "p95 ms", "p99 ms", "queue ms", "compute ms", "mean batch", "MiB", "remarks"),
)


def result_table(study: Sweep, recommendation: Recommendation | None) -> Table:
    """Every measurement, by throughput; `*` marks the Pareto front, `>` the recommended one."""
    front = pareto_front(study.measurements)
    table = Table(title=f"{study.request.model} on {study.server_name}", caption="* Pareto front   > recommended")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="right" if 0 < number < len(_COLUMNS) - 1 else "left")
    for measured in sorted(study.measurements, key=lambda one: -one.throughput):
        is_chosen = recommendation is not None and measured is recommendation.measured
        style = "bold green" if is_chosen else "" if measured in front else "dim"
        table.add_row(">" if is_chosen else "*" if measured in front else "", *_cells(measured, study), style=style)
    return table


def _cells(measured: Measurement, study: Sweep) -> list[Text]:
    candidate, latency, server = measured.candidate, measured.latency, measured.server
    texts = [
        str(candidate.instances),
        str(candidate.max_batch_size),
        "-" if candidate.queue_delay_us is None else str(candidate.queue_delay_us),
        "/".join(map(str, candidate.preferred)) or "-",
        str(measured.concurrency),
        f"{measured.throughput:,.1f}",
        *(f"{value:.2f}" for value in (latency.p50, latency.p90, latency.p95, latency.p99)),
        "-" if server is None else f"{server.queue:.2f}",
        "-" if server is None else f"{server.compute_input + server.compute_infer + server.compute_output:.2f}",
        "-" if server is None else f"{server.mean_batch:.1f}",
        "-" if measured.memory_bytes is None else f"{measured.memory_bytes / 2**20:,.0f}",
        ", ".join(remarks(measured, study)),
    ]
    return [Text(text) for text in texts]


def remarks(measured: Measurement, study: Sweep) -> list[str]:
    texts = [f"over {what}" for what in study.request.budget.excess(measured) if what != "errors"]
    if measured.num_errors:
        texts.append(f"{measured.num_errors} errors: {measured.error}")
    if not measured.is_steady:
        texts.append("not steady")
    if measured.client_load > 0.9:
        texts.append("load generator at its limit")
    return texts


def to_json(study: Sweep, recommendation: Recommendation | None) -> str:
    """Everything, for programs."""
    front = pareto_front(study.measurements)
    values: dict[str, Any] = {
        "model": study.request.model,
        "server": study.server_name,
        "is_whole": study.is_complete,
        "budget": asdict(study.request.budget),
        "request_batch": study.request.request_batch,
        "notes": study.notes,
        "refused": [{**asdict(candidate), "reason": reason} for candidate, reason in study.refused.items()],
        "measurements": [{**asdict(one), "is_pareto": one in front} for one in study.measurements],
        "recommended": None,
    }
    if recommendation is not None:
        values["recommended"] = {
            **asdict(recommendation.measured),
            "is_within_budget": recommendation.is_within_budget,
            "why": recommendation.why,
        }
    return json.dumps(values, indent=1) + "\n"


def to_csv(study: Sweep) -> str:
    """One line a measurement."""
    front = pareto_front(study.measurements)
    text = io.StringIO()
    writer = None
    for measured in study.measurements:
        row = _flat({**asdict(measured), "is_pareto": measured in front})
        if writer is None:
            writer = csv.DictWriter(text, list(row))
            writer.writeheader()
        writer.writerow(row)
    return text.getvalue()


_NO_SERVER = ("queue", "compute_input", "compute_infer", "compute_output", "mean_batch")


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in values.items():
        if key == "server":
            row |= {f"server_{part}": (value or {}).get(part) for part in _NO_SERVER}
        elif key == "latency":
            row |= {f"{part}_ms": figure for part, figure in value.items()}
        elif key == "candidate":
            row |= {**value, "preferred": "/".join(map(str, value["preferred"]))}
        else:
            row[key] = value
    return row


def draw(study: Sweep, recommendation: Recommendation | None, path: Path) -> None:
    """Write a PNG: a line a configuration, its points the concurrencies. Raises: ImportError, OSError."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 6))
    lines: dict[Candidate, list[Measurement]] = {}
    for measured in study.measurements:
        if not measured.num_errors:
            lines.setdefault(measured.candidate, []).append(measured)
    for candidate, points in lines.items():
        places = [(point.latency.p99, point.throughput) for point in points]
        axes.plot(*zip(*places, strict=True), marker="o", markersize=3, linewidth=1, alpha=0.6, label=str(candidate))
    front = pareto_front(study.measurements)
    if front:
        places = [(point.latency.p99, point.throughput) for point in front]
        axes.plot(*zip(*places, strict=True), color="black", linewidth=2, label="Pareto front")
    if recommendation is not None:
        chosen = recommendation.measured
        axes.plot([chosen.latency.p99], [chosen.throughput], "*", color="red", markersize=14, label="recommended")
    if study.request.budget.latency_ms is not None:
        axes.axvline(study.request.budget.latency_ms, color="red", linestyle=":", label="latency budget")
    axes.set_xlabel("p99 latency, ms")
    axes.set_ylabel("inferences/s")
    axes.set_title(study.request.model)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


class SweepDisplay:
    """A context manager that gives the callbacks of a sweep."""

    def __init__(self, study: Sweep, console: Console) -> None:
        self._study = study
        self._console = console
        # A bar in a pipe would be one line, at the end.
        self._bar = Bar(
            *(SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("asking the server", total=None)
        self._seen: set[Candidate] = set()

    def __enter__(self) -> SweepProgress:
        self._bar.start()
        return SweepProgress(self._trying, self._measured, self._refused)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _trying(self, candidate: Candidate, concurrency: int) -> None:
        self._seen.add(candidate)
        done = len(self._seen) - 1
        total = max(self._study.num_planned, len(self._seen))
        what = f"{candidate}, {concurrency} at a time"
        self._bar.update(self._task, description=what, completed=done, total=total)

    def _measured(self, measured: Measurement) -> None:
        figures = f"{measured.throughput:,.1f} inferences/s, p99 {measured.latency.p99:.2f} ms"
        errors = (
            f", [red]{measured.num_errors} errors: {escape(measured.error or '')}[/]" if measured.num_errors else ""
        )
        steady = "" if measured.is_steady else ", not steady"
        what = f"{measured.candidate}, {measured.concurrency} at a time: {figures}{steady}"
        self._bar.console.print(f"{escape(what)}{errors}", soft_wrap=True)

    def _refused(self, candidate: Candidate, why: str) -> None:
        self._bar.console.print(f"{escape(f'{candidate}: {why}')}", style="yellow", soft_wrap=True)
