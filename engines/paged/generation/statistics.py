"""Counters and histograms of an engine, under the names that vLLM's dashboards use."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.paged.base.types import FinishReason
from gateway.protocol.prometheus_text import Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


def _seconds() -> Histogram:
    return Histogram(_SECONDS)


@dataclass(slots=True)
class EngineStatistics:
    """Written by the engine's thread alone."""

    num_requests: int = 0
    # Each ended request counts once.
    num_finished: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_expired: int = 0
    num_output_tokens: int = 0
    num_steps: int = 0
    num_rows: int = 0
    num_guessed: int = 0  # drafted tokens
    num_right: int = 0  # of those: right
    first_token: Histogram = field(default_factory=_seconds)
    next_token: Histogram = field(default_factory=_seconds)
    step: Histogram = field(default_factory=_seconds)

    def count_end(self, reason: FinishReason) -> None:
        """Count an ended request."""
        match reason:
            case FinishReason.ERROR:
                self.num_failed += 1
            case FinishReason.CANCELLED:
                self.num_cancelled += 1
            case FinishReason.DEADLINE:
                self.num_expired += 1
            case _:
                self.num_finished += 1
