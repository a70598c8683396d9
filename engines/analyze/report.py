"""What an analysis found, as a table, as JSON, as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from engines.analyze.models import Measurement
from engines.analyze.pareto import Recommendation, pareto_front
from engines.analyze.sweep import Sweep

# A pipe has no width; rich would take 80 columns and fold the figures.
PIPE_COLUMNS = 240
_COLUMNS = (
    *("", "instances", "max batch", "delay µs", "preferred", "concurrency", "inferences/s"),
    *("p50 ms", "p90 ms", "p95 ms", "p99 ms", "queue ms", "compute ms", "mean batch", "MiB", "remarks"),
)


def result_table(study: Sweep, recommendation: Recommendation | None) -> Table:
    """Every measurement, by throughput; `*` marks the Pareto front, `>` the recommended one."""
    front = pareto_front(study.measurements)
    table = Table(title=f"{study.wish.model} on {study.server_name}", caption="* Pareto front   > recommended")
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
    """What must be known of a measurement beside its figures."""
    found = [f"over {what}" for what in study.wish.budget.excess(measured) if what != "errors"]
    if measured.num_errors:
        found.append(f"{measured.num_errors} errors: {measured.error}")
    if not measured.is_steady:
        found.append("not steady")
    if measured.client_load > 0.9:
        found.append("load generator at its limit")
    return found


def to_json(study: Sweep, recommendation: Recommendation | None) -> str:
    """Everything, for programs."""
    front = pareto_front(study.measurements)
    told: dict[str, Any] = {
        "model": study.wish.model,
        "server": study.server_name,
        "is_whole": study.is_whole,
        "budget": asdict(study.wish.budget),
        "request_batch": study.wish.request_batch,
        "notes": study.notes,
        "refused": [{**asdict(candidate), "reason": reason} for candidate, reason in study.refused.items()],
        "measurements": [{**asdict(one), "is_pareto": one in front} for one in study.measurements],
        "recommended": None,
    }
    if recommendation is not None:
        told["recommended"] = {
            **asdict(recommendation.measured),
            "is_within_budget": recommendation.is_within_budget,
            "why": recommendation.why,
        }
    return json.dumps(told, indent=1) + "\n"


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


def _flat(told: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in told.items():
        if key == "server":
            row |= {f"server_{part}": (value or {}).get(part) for part in _NO_SERVER}
        elif key == "latency":
            row |= {f"{part}_ms": figure for part, figure in value.items()}
        elif key == "candidate":
            row |= {**value, "preferred": "/".join(map(str, value["preferred"]))}
        else:
            row[key] = value
    return row
