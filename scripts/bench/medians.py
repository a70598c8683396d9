"""Medians over the rounds, and the goals that are checked with them."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench.samples import Results, Sample

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one goal. `measured` and `limit` are None if this run did not measure it."""

    goal: str
    measured: float | None
    limit: float | None
    unit: str
    is_floor: bool  # the limit is a minimum, not a maximum

    @property
    def passed(self) -> bool | None:
        if self.measured is None or self.limit is None:
            return None
        return self.measured >= self.limit if self.is_floor else self.measured <= self.limit


def median(results: Results, case: str, proxy: str, figure: Callable[[Sample], float | None]) -> float | None:
    """The median over the rounds of one figure; None if it was not measured."""
    values = [figure(sample) for sample in results.samples if (sample.case, sample.proxy) == (case, proxy)]
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def added_p50(results: Results, proxy: str) -> float | None:
    """Latency at one connection minus that of direct in the same round, in microseconds, median over the rounds."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in results.samples:
        if sample.case == "latency":
            rounds.setdefault(sample.round, {})[sample.proxy] = sample.p50_us
    added = [each[proxy] - each["direct"] for each in rounds.values() if proxy in each and "direct" in each]
    return statistics.median(added) if added else None


def added_cpu(results: Results, case: str, proxy: str, to: str) -> float | None:
    """CPU of a proxy minus that of another in the same round, in microseconds, median over the rounds."""
    rounds: dict[int, dict[str, float]] = {}
    for sample in results.samples:
        if sample.case == case and sample.cpu_us is not None:
            rounds.setdefault(sample.round, {})[sample.proxy] = sample.cpu_us
    added = [each[proxy] - each[to] for each in rounds.values() if proxy in each and to in each]
    return statistics.median(added) if added else None


def cpu(sample: Sample) -> float | None:
    return sample.cpu_us


def rate(sample: Sample) -> float:
    return sample.units_per_second


def p99(sample: Sample) -> float:
    return sample.p99_us


def throughput(sample: Sample) -> float:
    return sample.megabytes_per_second


def against(
    results: Results,
    goal: str,
    unit: str,
    case: str,
    figure: Callable[[Sample], float | None],
    factor: float,
    *,
    peer: str = "envoy",
    is_floor: bool = False,
) -> Verdict:
    """A goal whose limit is a multiple of a peer's figure."""
    theirs = median(results, case, peer, figure)
    limit = None if theirs is None else theirs * factor
    return Verdict(goal, median(results, case, "ours", figure), limit, unit, is_floor)


def added_p50_at_most_envoys(results: Results) -> Verdict:
    ours, envoys = added_p50(results, "ours"), added_p50(results, "envoy")
    return Verdict("added p50 at one connection <= Envoy's", ours, envoys, "µs", is_floor=False)
