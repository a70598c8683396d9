"""What the engine has done so far, in numbers under the names that vLLM's dashboards use."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate

from engines.paged.api_types import FinishReason

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Histogram:
    """Counts of seconds by bucket."""

    def __init__(self) -> None:
        self.bounds = _SECONDS
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    @property
    def cumulative(self) -> list[int]:
        return list(accumulate(self.counts))


@dataclass(slots=True)
class EngineStatistics:
    """Counters; only the engine's thread writes."""

    num_requests: int = 0
    # Each that has ended is one of these: by itself, by a fault, by whoever asked, or by its deadline.
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_expired: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_rows: int = 0
    num_guessed: int = 0  # by speculation
    num_right: int = 0  # of those
    first_token: Histogram = field(default_factory=Histogram)
    next_token: Histogram = field(default_factory=Histogram)
    step: Histogram = field(default_factory=Histogram)

    def count_end(self, reason: FinishReason) -> None:
        """A request has ended, all of it at once where that was before its time."""
        match reason:
            case FinishReason.ERROR:
                self.num_failed += 1
            case FinishReason.CANCELLED:
                self.num_cancelled += 1
            case FinishReason.DEADLINE:
                self.num_expired += 1
            case _:
                self.num_finished += 1
