"""In which order candidates are tried. Pure: a search yields a candidate and is sent its score, higher is better."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
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
    """The candidate that does the same, without settings that mean nothing: no batcher where there are no batches, no
    preferred size that no batch can have."""
    if candidate.max_batch_size <= 1:
        return replace(candidate, queue_delay_us=None, preferred=())
    if candidate.queue_delay_us is None:
        return replace(candidate, preferred=())
    return replace(candidate, preferred=tuple(size for size in candidate.preferred if size <= candidate.max_batch_size))


def grid(space: Space) -> Search:
    """Every combination, each once."""
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
                if _is_better(score, best_score):
                    best, best_score, has_moved = neighbour, score, True


def _is_better(score: float, best: float) -> bool:
    return score > best if isinf(best) else score > best + MIN_GAIN * abs(best)


_AXES = ("max_batch_size", "instances", "queue_delay_us", "preferred")


def _along(axis: str, origin: Candidate, space: Space) -> Iterator[Candidate]:
    """The candidates that differ from `origin` in one setting. A larger batch size means nothing without a batcher, so
    it comes with the shortest delay too."""
    match axis:
        case "max_batch_size":
            found = [replace(origin, max_batch_size=size) for size in space.max_batch_sizes]
        case "instances":
            found = [replace(origin, instances=count) for count in space.instances]
        case "queue_delay_us":
            found = [replace(origin, queue_delay_us=delay) for delay in space.queue_delays_us]
        case _:
            found = [replace(origin, preferred=sizes) for sizes in space.preferred]
    if axis == "max_batch_size" and origin.queue_delay_us is None:
        delays = [delay for delay in space.queue_delays_us if delay is not None]
        found += [replace(one, queue_delay_us=min(delays)) for one in found if delays and one.max_batch_size > 1]
    yield from dict.fromkeys(candidate for candidate in map(sound, found) if candidate != origin)


def wants_more(measured: Sequence[Measurement], budget: Budget) -> bool:
    """Whether a higher concurrency is worth a try, after these ones in rising order.

    Not after an error, a latency above the budget (it only grows), or where twice the load brought nothing twice.
    """
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
