"""The product's goals for HTTP: each a figure of ours against a limit, which is often a multiple of Envoy's figure."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.cases import Sample
from bench.memory import MemorySample
from bench.run import Results

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one goal came out. `measured` and `limit` are None where this run did not measure it."""

    goal: str
    measured: float | None
    limit: float | None
    unit: str
    is_floor: bool  # the limit is the least that is good enough, not the most

    @property
    def passed(self) -> bool | None:
        if self.measured is None or self.limit is None:
            return None
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit


def median(results: Results, case: str, proxy: str, figure: Callable[[Sample], float | None]) -> float | None:
    """The median over the rounds of one figure; None where it was not measured."""
    values = [figure(sample) for sample in results.samples if (sample.case, sample.proxy) == (case, proxy)]
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def added_p50(results: Results, proxy: str) -> float | None:
    """Latency at one connection beyond that of direct in the same round, in microseconds, median over the rounds."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in results.samples:
        if sample.case == "latency":
            rounds.setdefault(sample.round, {})[sample.proxy] = sample.p50_us
    added = [each[proxy] - each["direct"] for each in rounds.values() if proxy in each and "direct" in each]
    return statistics.median(added) if added else None


def verdicts(results: Results) -> list[Verdict]:
    """Every goal, in the order in which the product states them."""

    def against_envoy(
        goal: str, unit: str, case: str, figure: Callable[[Sample], float | None], factor: float, is_floor: bool = False
    ) -> Verdict:
        envoy = median(results, case, "envoy", figure)
        limit = None if envoy is None else envoy * factor
        return Verdict(goal, median(results, case, "ours", figure), limit, unit, is_floor)

    def memory_at_most(goal: str, figure: Callable[[MemorySample], float | None], megabytes: float) -> Verdict:
        grown = next((figure(sample) for sample in results.memory if sample.proxy == "ours"), None)
        return Verdict(goal, None if grown is None else grown / MEGABYTE, megabytes, "MB", is_floor=False)

    def cpu(sample: Sample) -> float | None:
        return sample.cpu_us

    def rate(sample: Sample) -> float:
        return sample.units_per_second

    return [
        against_envoy("CPU of a small infer <= 0.75 of Envoy's", "µs", "small", cpu, 0.75),
        against_envoy("requests/s of small infers >= 1.3 of Envoy's", "/s", "small", rate, 1.3, is_floor=True),
        against_envoy("CPU of a streamed token <= 0.8 of Envoy's", "µs", "sse", cpu, 0.8),
        against_envoy(
            "600 KB tensors: MB/s >= 0.9 of Envoy's",
            "MB/s",
            "tensor",
            lambda sample: sample.megabytes_per_second,
            0.9,
            is_floor=True,
        ),
        Verdict(
            "added p50 at one connection <= Envoy's",
            added_p50(results, "ours"),
            added_p50(results, "envoy"),
            "µs",
            is_floor=False,
        ),
        memory_at_most("idle worker <= 90 MB", lambda sample: sample.idle, 90),
        memory_at_most(
            "5,000 idle connections add <= 60 MB",
            lambda sample: sample.connections_added if sample.connections >= 5000 else None,
            60,
        ),
        memory_at_most(
            "2 GB streamed answer grows the worker by < 32 MB, fast reader or slow",
            lambda sample: (
                max(sample.fast_stream_added, sample.slow_stream_added) if sample.streamed_bytes >= 2e9 else None
            ),
            32,
        ),
    ]
