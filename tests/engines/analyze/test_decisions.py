"""Candidates, measurements and recommendations, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from engines.analyze.load import Window, is_steady, latency_of
from engines.analyze.models import AnalyzeError, Budget, Candidate, Latency, Measurement, Space
from engines.analyze.search import Search, coordinate, grid, pareto_front, recommend, score, sound, wants_more
from engines.analyze.sweep import SweepRequest, space_for

MIB = 2**20


def point(throughput: float, p99: float, *, instances: int = 1, errors: int = 0, mib: int | None = None) -> Measurement:
    return Measurement(
        candidate=Candidate(instances, 8),
        concurrency=1,
        throughput=throughput,
        latency=Latency(p99, p99, p99, p99, p99),
        num_requests=100,
        num_errors=errors,
        memory_bytes=None if mib is None else mib * MIB,
    )


SLOW, FAST, MIDDLE, BEATEN, WRONG = point(100, 9), point(30, 1), point(60, 3), point(50, 4), point(999, 0.1, errors=1)

FRONTS = [
    ("nothing", [], []),
    ("one", [FAST], [FAST]),
    ("by rising latency", [SLOW, FAST, MIDDLE], [FAST, MIDDLE, SLOW]),
    ("without what another beats in both", [SLOW, BEATEN, FAST, MIDDLE], [FAST, MIDDLE, SLOW]),
    ("without errors", [WRONG, FAST], [FAST]),
    ("of the same latency the better", [point(10, 1), FAST], [FAST]),
    ("of the same throughput the quicker", [point(30, 2), FAST], [FAST]),
]


@pytest.mark.parametrize(("what", "points", "front"), FRONTS, ids=[row[0] for row in FRONTS])
def test_the_pareto_front(what: str, points: list[Measurement], front: list[Measurement]) -> None:
    """The front has each measurement that no other beats in both throughput and latency."""
    assert pareto_front(points) == front


RECOMMENDATIONS = [
    ("the most throughput", [SLOW, FAST, MIDDLE], Budget(), SLOW, True),
    ("within the latency", [SLOW, FAST, MIDDLE], Budget(latency_ms=5), MIDDLE, True),
    ("the nearest, where nothing is", [SLOW, MIDDLE], Budget(latency_ms=2), MIDDLE, False),
    (
        "within the memory",
        [point(100, 1, mib=900), point(50, 1, mib=100)],
        Budget(memory_bytes=500 * MIB),
        point(50, 1, mib=100),
        True,
    ),
    (
        "memory before latency, where nothing is",
        [point(9, 5, mib=900), point(9, 7, mib=100)],
        Budget(latency_ms=1, memory_bytes=500 * MIB),
        point(9, 7, mib=100),
        False,
    ),
    (
        "fewer instances for about the same",
        [point(100, 5, instances=4), point(98, 5, instances=1), point(96, 5)],
        Budget(),
        point(98, 5, instances=1),
        True,
    ),
]


@pytest.mark.parametrize(
    ("what", "points", "budget", "chosen", "is_within"), RECOMMENDATIONS, ids=[row[0] for row in RECOMMENDATIONS]
)
def test_the_recommendation(
    what: str, points: list[Measurement], budget: Budget, chosen: Measurement, is_within: bool
) -> None:
    """The smallest of the best within the budget, or the nearest where nothing is within it."""
    matches = recommend(points, budget)
    assert matches is not None
    assert (matches.measured, matches.is_within_budget) == (chosen, is_within)
    assert matches.why.startswith("the most throughput" if is_within else "nothing is within the budget")


def test_errors_recommend_nothing() -> None:
    """A configuration that answers with errors is never recommended."""
    assert recommend([WRONG], Budget()) is None


SOUND = [
    (Candidate(2, 8, 100, (4, 16)), Candidate(2, 8, 100, (4,))),
    (Candidate(2, 1, 100, (1,)), Candidate(2, 1)),
    (Candidate(2, 0, 0), Candidate(2, 0)),
    (Candidate(2, 8, None, (4,)), Candidate(2, 8)),
]


@pytest.mark.parametrize(("candidate", "same"), SOUND)
def test_settings_without_a_meaning_are_left_out(candidate: Candidate, same: Candidate) -> None:
    """Two ways to write one configuration are one candidate."""
    assert sound(candidate) == same


def drive(search: Search, judge: Callable[[Candidate], float]) -> list[Candidate]:
    """The candidates of a search, where each has this score."""
    tried = []
    try:
        candidate = next(search)
        while True:
            tried.append(candidate)
            candidate = search.send(judge(candidate))
    except StopIteration:
        return tried


SPACE = Space(instances=(1, 2, 4), max_batch_sizes=(1, 8, 32), queue_delays_us=(None, 0, 500), preferred=((), (8,)))


def test_the_grid_is_every_combination_once() -> None:
    """The grid has every combination once: batch 1 without a batcher, other sizes without one and with each delay and
    preferred size."""
    tried = drive(grid(SPACE), lambda candidate: 1.0)
    assert len(tried) == len(set(tried)) == 3 * (1 + 2 * (1 + 2 * 2))


HILLS: list[tuple[str, Callable[[Candidate], float], Candidate]] = [
    ("flat", lambda one: 100.0, Candidate(1, 8)),
    ("more instances", lambda one: 100.0 * one.instances, Candidate(4, 8)),
    (
        "batches, once they are put together",
        lambda one: one.max_batch_size if one.queue_delay_us is not None else 1.0,
        Candidate(1, 32, 0),
    ),
    (
        "every setting",
        lambda one: one.instances * one.max_batch_size * (1 + (one.queue_delay_us or 0)) * (1 + len(one.preferred)),
        Candidate(4, 32, 500, (8,)),
    ),
    ("from nothing within the budget", lambda one: 5.0 if one.instances == 2 else -9.0, Candidate(2, 8)),
]


@pytest.mark.parametrize(("what", "judge", "best"), HILLS, ids=[row[0] for row in HILLS])
def test_the_quick_search_climbs(what: str, judge: Callable[[Candidate], float], best: Candidate) -> None:
    """The search tries no candidate twice, finds the best one on a simple hill, and tries at most as many as the
    grid."""
    tried = drive(coordinate(SPACE, Candidate(1, 8)), judge)
    assert tried[0] == Candidate(1, 8)
    assert len(tried) == len(set(tried)) <= 3 * (1 + 2 * (1 + 2 * 2))
    assert judge(max(tried, key=judge)) == judge(best)
    assert best in tried


RAMPS = [
    ("nothing yet", [], Budget(), True),
    ("it grows", [point(100, 1), point(190, 1)], Budget(), True),
    ("it stalls once", [point(100, 1), point(190, 1), point(191, 2)], Budget(), True),
    ("it stalls twice", [point(100, 1), point(190, 1), point(191, 2), point(192, 4)], Budget(), False),
    ("over the latency", [point(100, 1), point(190, 3)], Budget(latency_ms=2), False),
    ("errors", [point(100, 1, errors=1)], Budget(), False),
]


@pytest.mark.parametrize(("what", "points", "budget", "more"), RAMPS, ids=[row[0] for row in RAMPS])
def test_concurrency_rises_while_it_brings_something(
    what: str, points: Sequence[Measurement], budget: Budget, more: bool
) -> None:
    """Concurrency stops rising after an error, above the latency budget, or after two steps without a gain."""
    assert wants_more(points, budget) is more


def test_scores() -> None:
    """The score is throughput within the budget and negative latency outside it. A candidate with only errors scores
    lowest."""
    budget = Budget(latency_ms=5)
    assert score([FAST, MIDDLE, SLOW], budget) == 60
    assert score([SLOW], budget) == -9
    assert score([point(100, 1, errors=1)], budget) == float("-inf")


def window(rate: int, latency: float) -> Window:
    return Window(1.0, (latency,) * rate)


STEADY = [
    ("too few", [window(100, 1)] * 2, False),
    ("the same", [window(100, 1)] * 3, True),
    ("near", [window(95, 1), window(100, 1.1), window(105, 0.9)], True),
    ("the last three count", [window(9, 9), *[window(100, 1)] * 3], True),
    ("still rising", [window(50, 1), window(75, 1), window(100, 1)], False),
    ("latency moves", [window(100, 1), window(100, 1), window(100, 2)], False),
    ("nothing came", [window(0, 1)] * 3, False),
]


@pytest.mark.parametrize(("what", "windows", "steady"), STEADY, ids=[row[0] for row in STEADY])
def test_steady(what: str, windows: list[Window], steady: bool) -> None:
    """A measurement is steady after three consecutive windows that agree in throughput and latency."""
    assert is_steady(windows) is steady


def test_percentiles() -> None:
    """A percentile is a latency that was measured; of nothing, all are 0."""
    assert latency_of([float(value) for value in range(100, 0, -1)]) == Latency(50.5, 50, 90, 95, 99)
    assert latency_of([7.0]) == Latency(7, 7, 7, 7, 7)
    assert latency_of([]) == Latency(0, 0, 0, 0, 0)


SPACES = [
    (
        "the usual values, and its own",
        SweepRequest("m"),
        Candidate(3, 6, 70),
        Space((1, 2, 3, 4), (1, 4, 6, 16, 64), (None, 0, 70, 500, 2000), ((),)),
    ),
    ("those that are wished", SweepRequest("m", instances=(8,), max_batch_sizes=(5,)), Candidate(1, 4, None), None),
    ("no batches", SweepRequest("m"), Candidate(1, 0), Space((1, 2, 4), (0,), (None,), ((),))),
    (
        "not less than a request's batch",
        SweepRequest("m", request_batch=8, queue_delays_us=(0,)),
        Candidate(1, 32),
        Space((1, 2, 4), (16, 32, 64), (0,), ((),)),
    ),
]


@pytest.mark.parametrize(("what", "sweep_request", "start", "space"), SPACES, ids=[row[0] for row in SPACES])
def test_spaces(what: str, sweep_request: SweepRequest, start: Candidate, space: Space | None) -> None:
    """The swept values come from the command line, else from the model."""
    matches = space_for(sweep_request, start)
    if space is None:
        assert (matches.instances, matches.max_batch_sizes) == ((8,), (5,))
    else:
        assert replace(matches, concurrencies=space.concurrencies) == space


def test_a_model_without_batches_has_no_batch_sizes() -> None:
    """Requested values that the model cannot have are an error."""
    with pytest.raises(AnalyzeError, match="m cannot be swept over batch sizes: max_batch_size is 0"):
        space_for(SweepRequest("m", max_batch_sizes=(4,)), Candidate(1, 0))
