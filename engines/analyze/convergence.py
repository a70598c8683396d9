"""Windows of load: what they held, and whether the last ones agree. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engines.analyze.models import Latency

# The last windows that must agree, and by how much they may differ from their mean.
NUM_STEADY = 3
THROUGHPUT_TOLERANCE = 0.10
LATENCY_TOLERANCE = 0.25


@dataclass(frozen=True, slots=True)
class Window:
    """What came back in a span of time."""

    seconds: float
    latencies_ms: tuple[float, ...]  # of the good replies
    errors: tuple[str, ...] = ()

    @property
    def requests_per_second(self) -> float:
        return len(self.latencies_ms) / self.seconds


def is_steady(windows: Sequence[Window], num_steady: int = NUM_STEADY) -> bool:
    """Whether the last windows agree in throughput and in mean latency."""
    last = windows[-num_steady:]
    if len(last) < num_steady or not all(window.latencies_ms for window in last):
        return False
    rates = [window.requests_per_second for window in last]
    means = [sum(window.latencies_ms) / len(window.latencies_ms) for window in last]
    return _agree(rates, THROUGHPUT_TOLERANCE) and _agree(means, LATENCY_TOLERANCE)


def latency_of(values: Sequence[float]) -> Latency:
    """The percentiles of latencies in milliseconds; all 0 where there are none."""
    if not values:
        return Latency(0.0, 0.0, 0.0, 0.0, 0.0)
    ordered = sorted(values)
    p50, p90, p95, p99 = (ordered[ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.95, 0.99))
    return Latency(sum(ordered) / len(ordered), p50, p90, p95, p99)


def _agree(values: Sequence[float], tolerance: float) -> bool:
    mean = sum(values) / len(values)
    return all(abs(value - mean) <= tolerance * mean for value in values)
