"""The figures as a PNG, where matplotlib is installed."""

from __future__ import annotations

from pathlib import Path

from engines.paged.bench.figures import percentile
from engines.paged.bench.load import gaps
from engines.paged.bench.runner import BenchResult

DOT, BAR = "#333333", "#c8442c"


def draw(findings: BenchResult, path: Path) -> None:
    """Tokens per second with every round as a dot, the distribution of gaps between tokens, and the bandwidth's share.

    Raises: ImportError, OSError.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sheet = Figure(figsize=(12, 3.8), layout="constrained")
    FigureCanvasAgg(sheet)  # draws into a file, without a display
    rates, spread, share = sheet.subplots(1, 3)
    points = findings.points
    places, names = range(len(points)), [str(point.batch) for point in points]
    rates.bar(places, [point.tokens_per_second for point in points], color=BAR, alpha=0.85)
    for place, point in zip(places, points, strict=True):
        ends = [point.lowest_tokens_per_second, point.highest_tokens_per_second]
        rates.scatter([place] * 2, ends, color=DOT, s=9, zorder=3)
    rates.set_title("tokens/s, decoding (dots: least and most of the rounds)", fontsize=9)
    for point in points:
        own = sorted(gap * 1e3 for each in findings.rounds if each.batch == point.batch for gap in gaps(each.requests))
        spread.plot(own, [(at + 1) / len(own) for at in range(len(own))], label=f"{point.batch} at a time")
        spread.set_xlim(0, max(spread.get_xlim()[1], percentile(own, 99)))
    spread.set_title("ms from one token to the next: share of tokens below", fontsize=9)
    spread.legend(fontsize=8)
    share.bar(places, [point.bandwidth_share * 100 for point in points], color=BAR, alpha=0.85)
    share.set_title("% of the memory's bandwidth", fontsize=9)
    for axis in (rates, share):
        axis.set_xticks(list(places), names)
        axis.set_xlabel("sequences at a time", fontsize=8)
    for axis in (rates, spread, share):
        axis.spines[["top", "right"]].set_visible(False)
    machine = findings.machine
    chip = machine["gpu"] or machine["chip"]
    title = f"{findings.spec.model.name} ({findings.engine['dtype']}) on {chip}, torch {machine['torch']}"
    sheet.suptitle(f"{title}, {machine['time']}", fontsize=9)
    sheet.savefig(path, dpi=130)
