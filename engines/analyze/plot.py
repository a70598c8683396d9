"""Throughput against latency as a picture, where matplotlib is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from engines.analyze.models import Candidate, Measurement
from engines.analyze.pareto import Recommendation, pareto_front
from engines.analyze.sweep import Sweep


def can_plot() -> bool:
    return find_spec("matplotlib") is not None


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
    if study.wish.budget.latency_ms is not None:
        axes.axvline(study.wish.budget.latency_ms, color="red", linestyle=":", label="latency budget")
    axes.set_xlabel("p99 latency, ms")
    axes.set_ylabel("inferences/s")
    axes.set_title(study.wish.model)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
