"""Which measurements are worth a look, and which configuration is recommended. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.analyze.models import Budget, Measurement

# Within this share of the best throughput, the smaller configuration is the better one: runs differ by as much.
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The measurement whose configuration is recommended; `why` says it in a sentence."""

    measured: Measurement
    is_within_budget: bool
    why: str


def pareto_front(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Those that no other beats in throughput and p99 latency both, by rising latency; none with errors."""
    front: list[Measurement] = []
    good = [one for one in measurements if not one.num_errors]
    for one in sorted(good, key=lambda one: (one.latency.p99, -one.throughput)):
        if not front or one.throughput > front[-1].throughput:
            front.append(one)
    return front


def recommend(measurements: Sequence[Measurement], budget: Budget) -> Recommendation | None:
    """The smallest configuration that has about the best throughput within the budget; where none is within it, the one
    with the lowest latency. None where there are only errors."""
    allowed = [one for one in measurements if budget.allows(one)]
    if allowed:
        best = max(one.throughput for one in allowed)
        close = [one for one in allowed if one.throughput >= best * (1.0 - TOLERANCE)]
        chosen = min(close, key=_size)
        least = "" if chosen.throughput == best else f", {1 - chosen.throughput / best:.1%} below the best with less"
        return Recommendation(chosen, True, f"the most throughput within the budget{least}")
    good = [one for one in measurements if not one.num_errors]
    if not good:
        return None
    chosen = min(good, key=lambda one: (_over_memory(one, budget), one.latency.p99))
    wrong = " and ".join(budget.excess(chosen))
    return Recommendation(chosen, False, f"nothing is within the budget ({wrong}); this is the nearest")


def _size(measured: Measurement) -> tuple[float, ...]:
    candidate = measured.candidate
    batcher = (candidate.queue_delay_us is not None, len(candidate.preferred))
    return (candidate.instances, candidate.max_batch_size, *batcher, measured.latency.p99)


def _over_memory(measured: Measurement, budget: Budget) -> bool:
    return "memory" in budget.excess(measured)
