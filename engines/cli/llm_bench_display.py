"""The output of `pointsman llm bench`: progress bars, then a table and plots of text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from engines.paged.bench.figures import Figures, percentile
from engines.paged.bench.load import gaps
from engines.paged.bench.runner import BenchResult

EIGHTHS = "▏▎▍▌▋▊▉█"
LEVELS = " ▁▂▃▄▅▆▇█"
BAR_CELLS = 40
HISTOGRAM_CELLS = 48
# Beyond this percentile, outliers would compress the histogram.
HISTOGRAM_PERCENT = 99


class Bars:
    """A progress bar; none in a pipe."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description:<32}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Bar(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> Bars:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def progress(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)


def show(findings: BenchResult, console: Console) -> None:
    machine, engine, spec = findings.machine, findings.engine, findings.spec
    where = machine["gpu"] or f"{machine['chip']}, {machine['threads']} of {machine['cores']} cores"
    console.print(f"{where}, {machine['memory_gb']} GB, torch {machine['torch']}", style="dim", soft_wrap=True)
    console.print(
        f"{spec.model.name}: {engine['architecture']}, {engine['dtype']}, {engine['ops']} ops on {engine['device']}; "
        f"{spec.prompt_tokens} tokens in, {spec.output_tokens} out, {spec.rounds} rounds",
        style="dim",
        markup=False,
        soft_wrap=True,
    )
    console.print(f"memory: {engine['memory_text']}", style="dim", markup=False, soft_wrap=True)
    bandwidth = findings.bandwidth
    console.print(
        f"memory bandwidth: {bandwidth.best / 1e9:.1f} GB/s (read {max(bandwidth.read) / 1e9:.1f}, "
        f"copy {max(bandwidth.copy) / 1e9:.1f})",
        style="dim",
        soft_wrap=True,
    )
    console.print(table(findings.points))
    for line in (*rate_plot(findings.points), "", *spread_plot(findings)):
        console.print(line, markup=False, soft_wrap=True)


def table(points: Sequence[Figures]) -> Table:
    """A row for each batch size, in 80 columns."""
    title = "so many at a time: medians over the rounds, latencies in ms"
    result = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for head in ("", "tokens/s", "least..most", "prompt/s", "first", "p95", "token", "p95", "bandwidth"):
        result.add_column(head, justify="right", no_wrap=True)
    for point in points:
        rates = (point.lowest_tokens_per_second, point.highest_tokens_per_second)
        latencies = (point.first_token_p50, point.first_token_p95, point.token_p50, point.token_p95)
        result.add_row(
            str(point.batch),
            _number(point.tokens_per_second),
            "..".join(_number(rate) for rate in rates),
            _number(point.prompt_tokens_per_second),
            *(_number(seconds * 1e3) for seconds in latencies),
            f"{point.bandwidth_share:.0%}",
        )
    return result


def rate_plot(points: Sequence[Figures]) -> list[str]:
    """A bar a batch size."""
    most = max(point.tokens_per_second for point in points)
    lines = ["tokens/s, decoding"]
    for point in points:
        bar = _bar(point.tokens_per_second / most)
        lines.append(f"{point.batch:>5}  {bar:<{BAR_CELLS}}  {point.tokens_per_second:,.1f}")
    return lines


def spread_plot(findings: BenchResult) -> list[str]:
    """A histogram of the time between tokens."""
    lines = ["ms from one token to the next: how many took how long"]
    own = {
        point.batch: [gap * 1e3 for each in findings.rounds if each.batch == point.batch for gap in gaps(each.requests)]
        for point in findings.points
    }
    longest = max(percentile(values, HISTOGRAM_PERCENT) for values in own.values()) or 1.0
    for batch, values in own.items():
        lines.append(f"{batch:>5}  {_histogram(values, longest)}  {percentile(values, 50):,.2f} p50")
    lines.append(f"       0{longest:>{HISTOGRAM_CELLS - 1},.1f} ms")
    return lines


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _bar(share: float) -> str:
    """Of BAR_CELLS cells, to an eighth of one; at least that, so that nothing is invisible."""
    eighths = max(1, round(share * BAR_CELLS * len(EIGHTHS)))
    cells, rest = divmod(eighths, len(EIGHTHS))
    return EIGHTHS[-1] * cells + (EIGHTHS[rest - 1] if rest else "")


def _histogram(values: Sequence[float], longest: float) -> str:
    counts = [0] * HISTOGRAM_CELLS
    for value in values:
        counts[min(HISTOGRAM_CELLS - 1, int(value / longest * HISTOGRAM_CELLS))] += 1
    most = max(counts)
    return "".join(LEVELS[-(-count * (len(LEVELS) - 1) // most)] for count in counts)
