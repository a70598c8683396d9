"""Reports of mirrored routes as they are stored, and their sum over gateways."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np

from gateway.config.experiment_specs import ShadowSpec
from gateway.shadow.comparison.report import MAX_WORST, RouteReport
from gateway.shadow.comparison.report_state import added, measure_of, read_report, write_report
from gateway.shadow.comparison.tensors import ComparedTensor, TensorDifference, compare
from gateway.shadow.comparison.verdict import ComparisonOutcome, Verdict

SHADOW = ShadowSpec("new")


def difference(size: float) -> TensorDifference:

    one = np.array([1.0, 2.0], np.float32)
    other = one + np.float32(size)
    return compare("y", ComparedTensor("FP32", one), ComparedTensor("FP32", other), SHADOW)


def report(sizes: list[float], since: float = 100.0) -> RouteReport:
    """A report of comparisons with these differences, the first at 101."""
    made = RouteReport("r", SHADOW, since)
    for number, size in enumerate(sizes):
        made.mirrored += 1
        outcome = ComparisonOutcome.DIFFERS if size > 0.05 else ComparisonOutcome.AGREES
        facts: dict[str, Any] = {"request_id": f"{since}-{number}", "time": since + 1 + number}
        made.answered("old", "200/200", (0.1, 0.2 + size, 0.05, 0.06))
        made.add(Verdict(outcome, (difference(size),)), facts, since + 1 + number)
    made.drop("max_in_flight")
    return made


def stored(made: RouteReport, captured: dict[str, int] | None = None) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(write_report(made, captured or {})))
    return state


def test_a_report_is_read_as_it_was() -> None:
    """Through JSON a report stays the same."""
    made = report([0.0, 0.5, 2.0])
    again, captured = read_report("r", SHADOW, stored(made, {"captured": 3, "too_long": 1}))
    assert stored(again) == stored(made)
    assert again.outcomes == made.outcomes
    assert again.latency == made.latency
    assert again.tensors == made.tensors
    assert captured == Counter(captured=3, too_long=1)


def test_the_sum_of_two_gateways_is_the_report_of_one() -> None:
    """What two gateways add, in parts and in turn, is what one would have counted."""
    one, other = [0.0, 0.5, 2.0, 0.0], [0.1, 0.01, 7.0]
    total: dict[str, Any] = {}
    before: dict[str, Any] = {}
    for number in range(1, len(one) + 1):
        now = stored(report(one[:number]), {"captured": number})
        total, before = added(total, now, before), now
        assert added(total, now, before) == total  # nothing is new
    total = added(total, stored(report(other, 200.0), {"captured": 3}), {})
    found, captured = read_report("r", SHADOW, total)
    expected = report(one)
    for each in report(other, 200.0).worst:
        expected.worst.append(each)
    expected.worst.sort(key=lambda each: -each[0])
    assert found.mirrored == 7
    assert captured == Counter(captured=7)
    assert found.outcomes == Counter(agreeing=3, differing=4)
    assert stored(found)["worst"] == stored(expected)["worst"]
    assert (found.since, found.updated) == (100.0, 203.0)
    tensor = found.tensors["y"]
    assert tensor.compared == 7
    assert (tensor.max_absolute.least, round(tensor.max_absolute.most, 4)) == (0.0, 7.0)
    assert sum(tensor.max_absolute.bins.values()) == 7
    assert found.latency["candidate"].count == 7
    assert found.dropped == Counter(max_in_flight=2)


def test_a_stored_report_is_bounded() -> None:
    """However many gateways add to it, it names a few single requests."""
    total: dict[str, Any] = {}
    for number in range(20):
        total = added(total, stored(report([0.5 + number] * 5, 1000.0 * number + 1)), {})
    assert len(total["worst"]) == MAX_WORST
    assert total["worst"][0][0] == max(size for size, _ in total["worst"])
    assert total["mirrored"] == 100


def test_requests_from_before_a_reset_do_not_return() -> None:
    """After a reset, what a gateway has listed before is not listed again."""
    before = stored(report([2.0, 3.0]))
    now = stored(report([2.0, 3.0, 4.0]))
    total = added({"since": 102.5}, now, before)
    assert [entry["time"] for _, entry in total["worst"]] == [103.0]
    assert total["mirrored"] == 1


def test_reports_of_other_candidates_are_not_added() -> None:
    """The measure names the candidate and the tolerance, and not what does not matter."""
    assert measure_of(SHADOW) == measure_of(ShadowSpec("new", sample=0.5, max_in_flight=9))
    assert measure_of(SHADOW) != measure_of(ShadowSpec("newer"))
    assert measure_of(SHADOW) != measure_of(ShadowSpec("new", top_k=3))
