"""The order in which candidates are tried, and the recommendation. Pure.

A search yields a candidate and is sent its score, higher is better.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isinf

from engines.analyze.models import Budget, Candidate, Measurement, Space

Search = Generator[Candidate, float, None]

# A gain below this is taken for noise: the search does not walk on for it.
MIN_GAIN = 0.02
# From one concurrency to the next (twice as many) a server that has room gains far more.
_MIN_RAMP_GAIN = 0.05
_STALLS = 2


def sound(candidate: Candidate) -> Candidate:
    """The candidate without ineffective settings: no batcher without batches, no preferred size above the maximum."""
    if candidate.max_batch_size <= 1:
        return replace(candidate, queue_delay_us=None, preferred=())
    if candidate.queue_delay_us is None:
        return replace(candidate, preferred=())
    return replace(candidate, preferred=tuple(size for size in candidate.preferred if size <= candidate.max_batch_size))


def grid(space: Space) -> Search:
    seen: set[Candidate] = set()
    for instances, size, delay, preferred in product(
        space.instances, space.max_batch_sizes, space.queue_delays_us, space.preferred
    ):
        candidate = sound(Candidate(instances, size, delay, preferred))
        if candidate not in seen:
            seen.add(candidate)
            yield candidate


def coordinate(space: Space, start: Candidate) -> Search:
    """From `start`, one setting after the other to its best value, until a whole round brings nothing."""
    scores: dict[Candidate, float] = {}

    def measured(candidate: Candidate) -> Generator[Candidate, float, float]:
        if candidate not in scores:
            scores[candidate] = yield candidate
        return scores[candidate]

    best = sound(start)
    best_score = yield from measured(best)
    has_moved = True
    while has_moved:
        has_moved = False
        for axis in _AXES:
            for neighbour in _along(axis, best, space):
                score = yield from measured(neighbour)
                if score > (best_score if isinf(best_score) else best_score + MIN_GAIN * abs(best_score)):
                    best, best_score, has_moved = neighbour, score, True


# The settings in the order in which they are tried, and the field of the space with their values.
_AXES = {
    "max_batch_size": "max_batch_sizes",
    "instances": "instances",
    "queue_delay_us": "queue_delays_us",
    "preferred": "preferred",
}


def _along(axis: str, origin: Candidate, space: Space) -> Iterator[Candidate]:
    """The candidates that differ from `origin` in one setting. A larger batch size means nothing without a batcher, so
    it comes with the shortest delay too."""
    candidates = [replace(origin, **{axis: value}) for value in getattr(space, _AXES[axis])]
    if axis == "max_batch_size" and origin.queue_delay_us is None:
        delays = [delay for delay in space.queue_delays_us if delay is not None]
        candidates += [
            replace(one, queue_delay_us=min(delays)) for one in candidates if delays and one.max_batch_size > 1
        ]
    yield from dict.fromkeys(candidate for candidate in map(sound, candidates) if candidate != origin)


def wants_more(measured: Sequence[Measurement], budget: Budget) -> bool:
    """Whether a higher concurrency is worth a try, after these ones in rising order. Not after an error, a latency
    above the budget (it only grows), or where twice the load brought nothing twice."""
    if not measured:
        return True
    last = measured[-1]
    if last.num_errors or (budget.latency_ms is not None and last.latency.p99 > budget.latency_ms):
        return False
    best_before = [max((one.throughput for one in measured[:end]), default=0.0) for end in range(len(measured))]
    gains = [
        one.throughput > before * (1.0 + _MIN_RAMP_GAIN) for one, before in zip(measured, best_before, strict=True)
    ]
    return any(gains[-_STALLS:])


def score(measured: Sequence[Measurement], budget: Budget) -> float:
    """How good a candidate is: its best throughput within the budget; below zero, the nearer the better, without."""
    allowed = [one.throughput for one in measured if budget.allows(one)]
    if allowed:
        return max(allowed)
    return max((-one.latency.p99 for one in measured if not one.num_errors), default=float("-inf"))


# Within this share of the best throughput, the smaller configuration is the better one: runs differ by as much.
TOLERANCE = 0.03


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended measurement, and the reason in a sentence."""

    measured: Measurement
    is_within_budget: bool
    why: str


def pareto_front(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements without errors that no other beats in both throughput and p99 latency, by rising latency."""
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
    chosen = min(good, key=lambda one: ("memory" in budget.excess(one), one.latency.p99))
    wrong = " and ".join(budget.excess(chosen))
    return Recommendation(chosen, False, f"nothing is within the budget ({wrong}); this is the nearest")


def _size(measured: Measurement) -> tuple[float, ...]:
    candidate = measured.candidate
    batcher = (candidate.queue_delay_us is not None, len(candidate.preferred))
    return (candidate.instances, candidate.max_batch_size, *batcher, measured.latency.p99)
