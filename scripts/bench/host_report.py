"""The output of the engine host's benchmark: a table for each group of cases, and the goals."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bench.host_cases import CASES, CONCURRENCIES, HostCase
from bench.host_run import HostResults
from bench.medians import Verdict, cpu, median, rate
from bench.report import goals_table
from bench.samples import Sample

OF_TRITON, OF_MLSERVER, BATCHING = 0.5, 3.0, 2.0


def verdicts(results: HostResults) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""
    found = []
    for protocol in ("grpc", "rest"):
        for concurrency in CONCURRENCIES:
            case = f"{protocol}-{concurrency}"
            for peer, factor in (("triton", OF_TRITON), ("mlserver", OF_MLSERVER)):
                goal = f"{case}: requests/s >= {factor:g} of {peer}'s"
                theirs = median(results, case, peer, rate)
                limit = None if theirs is None else theirs * factor
                found.append(Verdict(goal, median(results, case, "ours", rate), limit, "/s", is_floor=True))
    for kind in ("onnx", "torch"):
        alone = median(results, f"{kind}-alone", "ours", rate)
        limit = None if alone is None else alone * BATCHING
        goal = f"{kind}: requests/s with dynamic batching >= {BATCHING:g} of those without"
        found.append(Verdict(goal, median(results, f"{kind}-batched", "ours", rate), limit, "/s", is_floor=True))
    large, small = (_fastest(results, f"shm-{size}") for size in ("large", "small"))
    added = None if large is None or small is None else large - small
    goal = "600 KB through shared memory adds no more to the best p50 than one copy of it"
    found.append(Verdict(goal, added, results.copy_us, "µs", is_floor=False))
    return found


def _fastest(results: HostResults, case: str) -> float | None:
    """Our lowest median latency of all rounds, because the noise of a busy machine exceeds the cost of a copy."""
    return min(
        (sample.p50_us for sample in results.samples if (sample.case, sample.proxy) == (case, "ours")), default=None
    )


def p50(sample: Sample) -> float:
    return sample.p50_us


def p99(sample: Sample) -> float:
    return sample.p99_us


def show(results: HostResults, cases: Sequence[HostCase], goals: Sequence[Verdict], console: Console) -> None:
    table = Table(title="medians over the rounds", title_justify="left", title_style="bold")
    for head in ("case", "server", "requests/s", "of Triton's", "of MLServer's", "p50 µs", "p99 µs", "CPU µs/request"):
        table.add_column(head, justify="left" if head in ("case", "server") else "right")
    for case in cases:
        for server in case.servers:
            row = [median(results, case.name, server, figure) for figure in (rate, p50, p99, cpu)]
            if row[0] is None:
                continue
            ratios = [_ratio(row[0], median(results, case.name, peer, rate)) for peer in ("triton", "mlserver")]
            cells = [_number(row[0]), *ratios, *map(_number, row[1:])]
            table.add_row(case.name, server, *cells, style="bold" if server == "ours" else None)
        table.add_section()
    console.print(table)
    for failure in results.failures:
        title = CASES[failure.case].title
        text = f"{failure.case} ({title}) by {failure.proxy} failed: {failure.why}"
        console.print(text, style="bold red", markup=False, highlight=False)
    if results.copy_us is not None:
        console.print(f"one copy of 600 KB costs {results.copy_us:.0f} µs here", highlight=False)
    console.print(goals_table(goals))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _ratio(value: float, base: float | None) -> str:
    return "-" if base is None else f"{value / base:.2f}"
