"""The evidence on arms, by period."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest

from gateway.experiments.evidence import MAX_PERIODS, MAX_POINTS, Evidence, TimeSeries, read_counts, write_counts
from gateway.observability.arm_stats import NUM_BUCKETS, ArmCounts, ArmKey, Feedback, LatencyStats
from tests.experiments.making import counts


def full(seed: int) -> ArmCounts:
    """Counts with a value in each field."""
    dice = random.Random(seed)
    made = ArmCounts(ArmKey("x", "new"))

    def filled(zero: Any) -> Any:
        if isinstance(zero, LatencyStats):
            whole = [dice.randrange(9) for _ in range(NUM_BUCKETS)]
            return LatencyStats(whole, [dice.random() for _ in whole], {dice.randrange(400): 3})
        if isinstance(zero, list):
            return [type(zero[0])(dice.randrange(9)) for _ in zero]
        return type(zero)(dice.randrange(1, 9))

    for each in fields(made):
        if each.name in ("key", "kinds", "feedback"):
            continue
        setattr(made, each.name, filled(getattr(made, each.name)))
    made.kinds = {"503": 2}
    made.feedback = {"rating": Feedback(squares=2.5, labels={"good": 1})}
    made.feedback["rating"].count[3] = 2
    return made


def test_counts_are_read_as_they_were_written() -> None:
    """Every field survives JSON; zeros are left out."""
    made = full(1)
    text = json.dumps(write_counts(made))
    again = read_counts(made.key, json.loads(text))
    assert json.dumps(write_counts(again)) == text
    assert again.requests == made.requests and again.latency.bins == made.latency.bins
    assert again.feedback["rating"].labels == {"good": 1}
    assert write_counts(ArmCounts(ArmKey("x", "new"))) == {}
    assert read_counts(made.key, {"later": 1}) == ArmCounts(made.key)
    with pytest.raises(ValueError, match="2 buckets, not 64"):
        read_counts(made.key, {"requests": [1, 2]})


def requests(evidence: Evidence) -> list[int]:
    """The requests of `new`, by period."""
    return [sum(stratum.arms["new"].requests) for stratum in evidence.strata]


SHARES = {"old": 0.95, "new": 0.05}


def test_what_comes_between_two_words_of_a_turn_counts() -> None:
    """A gateway's first report in a turn is its baseline; requests that it reports for an earlier turn do not count."""
    evidence = Evidence("x")
    evidence.begin(1, SHARES)
    evidence.take("a", 1, {"new": counts(1000)}, 1.0)
    assert requests(evidence) == [0]
    evidence.take("a", 1, {"new": counts(1010)}, 2.0)
    evidence.take("b", 1, {}, 2.0)
    evidence.take("b", 1, {"new": counts(5)}, 3.0)
    assert requests(evidence) == [15] and evidence.requests("new") == 15
    evidence.begin(2, {"old": 0.75, "new": 0.25})
    evidence.take("a", 1, {"new": counts(1020)}, 4.0)
    evidence.take("a", 2, {"new": counts(1030)}, 5.0)
    evidence.take("a", 2, {"new": counts(1031)}, 6.0)
    assert requests(evidence) == [15, 1] and evidence.requests("new") == 1
    assert [stratum.shares["new"] for stratum in evidence.strata] == [0.05, 0.25]
    assert sum(evidence.totals()["new"].requests) == 16


def test_a_gateway_that_is_gone_takes_nothing_with_it() -> None:
    """The counts of a gateway that is gone stay, and one that restarts adds what it counts from then on."""
    evidence = Evidence("x")
    evidence.begin(1, SHARES)
    for source, before, after in (("a", 0, 7), ("b", 3, 8), ("a again", 100, 101)):
        evidence.take(source, 1, {"new": counts(before)}, 1.0)
        evidence.take(source, 1, {"new": counts(after)}, 2.0)
    assert requests(evidence) == [7 + 5 + 1]


def test_evidence_is_read_as_it_was_written() -> None:
    """The periods are stored; a gateway's first report after that is a new baseline."""
    evidence = Evidence("x")
    for turn in (1, 2):
        evidence.begin(turn, SHARES)
        evidence.take("a", turn, {"new": counts(10 * turn)}, 1.0)
        evidence.take("a", turn, {"new": counts(10 * turn + turn)}, 2.0)
    kept = [json.loads(json.dumps(evidence.write(number))) for number in evidence.numbers]
    again = Evidence.read("x", list(reversed(kept)))
    assert requests(again) == requests(evidence) == [1, 2]
    again.take("a", 2, {"new": counts(500)}, 3.0)
    again.take("a", 2, {"new": counts(501)}, 4.0)
    assert requests(again) == [1, 3]


def test_periods_are_cut_and_bounded() -> None:
    """A long period is cut for bandits, whose evidence ages; the oldest of many periods are dropped."""
    evidence = Evidence("x")
    evidence.begin(1, SHARES)
    for second in range(0, 10 * MAX_PERIODS, 5):
        evidence.take("a", 1, {"new": counts(second)}, 1000.0 + second)
        evidence.cut(1000.0 + second, 4.0)
    assert len(evidence.strata) == MAX_PERIODS
    ages = [age for age, _ in evidence.aged("new", 1640.0)]
    assert ages == sorted(ages, reverse=True) and ages[-1] < 20
    assert evidence.requests("new") < 640


def test_charts_keep_the_newest_points_and_thin_out_the_others() -> None:
    """The number of points is bounded; they are in order, with the first one and each change of shares."""
    series = TimeSeries()
    for second in range(5000):
        series.add({"time": float(1 + second), "shares": {"new": 0.05 if second < 3000 else 0.25}})
    times = [point["time"] for point in series.since()]
    assert len(times) <= MAX_POINTS and times == sorted(times) and times[0] == 1.0
    assert times[-100:] == [float(second) for second in range(4901, 5001)]
    assert {1.0, 3001.0} <= set(times) and max(b - a for a, b in pairwise(times)) < 500
    assert [point["time"] for point in series.since(4998.0)] == [4999.0, 5000.0]
