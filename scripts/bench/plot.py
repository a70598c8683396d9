"""The plot of a run: one panel per figure; bars are medians, dots the single rounds."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.medians import MEGABYTE
from bench.report import proxies_of
from bench.samples import Results

# Proxy -> the figures of its rounds.
Bars = dict[str, list[float]]

# Case, figure of its samples, title.
Panel = tuple[str, str, str]

MEMORY_PANELS = (("idle", "idle worker: MB"), ("connections_added", "idle connections add: MB"))
COLOURS = {
    "ours": "#c8442c",
    "envoy": "#7a5ca8",
    "nginx": "#3f8f5b",
    "grpcio": "#3f6f9b",
    "vllm-router": "#d8a13a",
    "sglang-router": "#3f8f5b",
    "litellm": "#3f6f9b",
    "ours-served": "#e07a5f",
    "transformers": "#3f6f9b",
    "transformers-serve": "#7fa8c9",
    "llama.cpp": "#3f8f5b",
    "direct": "#9a9a9a",
}
COLUMNS = 4

# Maximum length of all bars' names together, so that they do not overlap.
MAX_LABEL_LETTERS = 24
# Bars that differ by more would hide the small ones.
LOG_FROM = 30


def write_plot(results: Results, panels: Sequence[Panel], environment: dict[str, Any], path: Path) -> None:
    drawn = [(title, _rounds(results, case, figure)) for case, figure, title in panels]
    for figure, title in MEMORY_PANELS:
        drawn.append((title, {each.proxy: [getattr(each, figure) / MEGABYTE] for each in results.memory}))
    drawn = [(title, bars) for title, bars in drawn if bars]
    if not drawn:
        return
    columns = min(COLUMNS, len(drawn))
    rows = -(-len(drawn) // columns)
    sheet = Figure(figsize=(3.4 * columns, 3.1 * rows), layout="constrained")
    FigureCanvasAgg(sheet)  # draws into a file: no display is needed or opened
    axes = sheet.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(drawn) :]:
        axis.set_visible(False)
    for axis, (title, bars) in zip(axes.flat, drawn, strict=False):
        _draw(axis, title, bars)
    sheet.suptitle(f"{environment['processor']}, {environment['cores']} cores, {environment['time']}", fontsize=9)
    sheet.savefig(path, dpi=130)


def _rounds(results: Results, case: str, figure: str) -> Bars:
    bars: Bars = {}
    for proxy in proxies_of(results, case):
        samples = [sample for sample in results.samples if (sample.case, sample.proxy) == (case, proxy)]
        values = [getattr(sample, figure) for sample in samples]
        if None not in values:  # direct has no CPU of its own
            bars[proxy] = values
    return bars


def _draw(axis: Axes, title: str, bars: Bars) -> None:
    for index, (proxy, values) in enumerate(bars.items()):
        axis.bar(index, statistics.median(values), color=COLOURS.get(proxy, "#444444"), alpha=0.85)
        axis.scatter([index] * len(values), values, color="black", s=9, zorder=3)
    axis.set_xticks(range(len(bars)), list(bars))
    if sum(map(len, bars)) > MAX_LABEL_LETTERS:
        axis.tick_params(axis="x", labelrotation=25, labelsize=8)
    medians = [statistics.median(values) for values in bars.values()]
    if max(medians) > LOG_FROM * min(medians) > 0:
        axis.set_yscale("log")
    axis.set_title(title, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
