"""The output of the language-model engines' benchmark: a table for each case with the spread of its rounds, and
goals."""

import statistics
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from bench.llm_cases import LlmCase, LlmSample
from bench.llm_run import LlmResults
from bench.medians import Verdict
from bench.report import goals_table, proxies_of

# The peer that each engine's rates are compared with.
BASES = {"ours": "transformers", "ours-served": "transformers-serve", "llama.cpp": "transformers-serve"}


def show(results: LlmResults, cases: Iterable[LlmCase], verdicts: Sequence[Verdict], console: Console) -> None:
    for name, settings in results.settings.items():
        console.print(f"{name}: {settings}", style="dim", highlight=False)
    for case in cases:
        if proxies_of(results, case.name):
            console.print(_case_table(results, case))
        for failure in results.failures:
            if failure.case == case.name:
                text = f"{case.name} by {failure.proxy} failed: {failure.why}"
                console.print(text, style="bold red", markup=False, highlight=False)
    console.print(goals_table(verdicts))


def _case_table(results: LlmResults, case: LlmCase) -> Table:
    """A row for each engine: medians over the rounds, and their spread."""
    table = Table(title=f"{case.name}: {case.title}", title_justify="left", title_style="bold")
    table.add_column("engine")
    for field, head in case.columns:
        table.add_column(head, justify="right")
        if field == "units_per_second":
            table.add_column("of transformers'", justify="right")
    for engine in proxies_of(results, case.name):
        cells = []
        for field, _ in case.columns:
            values = values_of(results, case.name, engine, field)
            cells.append(_spread(values))
            if field == "units_per_second":
                cells.append(_of_peer(results, case.name, engine))
        table.add_row(engine, *cells, style="bold" if engine.startswith("ours") else None)
    return table


def values_of(results: LlmResults, case: str, engine: str, field: str) -> list[float]:
    """One figure of all rounds in which it was measured."""
    samples = [sample for sample in results.samples if (sample.case, sample.proxy) == (case, engine)]
    values = [getattr(sample, field) for sample in samples if isinstance(sample, LlmSample)]
    return [value for value in values if value is not None]


def _spread(values: Sequence[float]) -> str:
    """The median, and the lowest and the highest of all rounds."""
    if not values:
        return "-"
    median = _number(statistics.median(values))
    return median if len(values) == 1 else f"{median} [dim]({_number(min(values))}..{_number(max(values))})[/]"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _of_peer(results: LlmResults, case: str, engine: str) -> str:
    own = values_of(results, case, engine, "units_per_second")
    base = values_of(results, case, BASES.get(engine, ""), "units_per_second")
    return f"{statistics.median(own) / statistics.median(base):.2f}" if own and base else "-"
