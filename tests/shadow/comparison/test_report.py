"""Reports of comparisons: exact counts, and bounded size however long they run."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from gateway.shadow.comparison.outputs import GeneratedText
from gateway.shadow.comparison.report import MAX_WORST, Distribution, RouteReport
from gateway.shadow.comparison.tensors import ComparedTensor, compare
from gateway.shadow.comparison.texts import compare as compare_texts
from gateway.shadow.comparison.verdict import ComparisonOutcome, Verdict

SPEC = ShadowSpec("new")


def differing(by: float, name: str = "y") -> Verdict:
    one, other = np.array([1.0], np.float32), np.array([1.0 + by], np.float32)
    found = compare(name, ComparedTensor("FP32", one), ComparedTensor("FP32", other), SPEC)
    return Verdict(ComparisonOutcome.AGREES if found.agrees else ComparisonOutcome.DIFFERS, (found,))


def facts(number: int) -> dict[str, Any]:
    return {"request_id": f"r{number}"}


def test_a_distribution_of_one_value_is_that_value() -> None:
    """Extremes, mean and quantiles are exact where all values are equal."""
    found = Distribution()
    for _ in range(7):
        found.add(0.125)
    fields = found.to_json()
    assert {fields[name] for name in ("least", "mean", "most", "p50", "p90", "p99")} == {0.125}
    assert fields["bins"] == [{"from": pytest.approx(0.1), "to": pytest.approx(0.1258925), "count": 7}]


def test_quantiles_are_right_to_a_bin() -> None:
    """Quantiles are within one bin of the sorted values; zeros have their own bin, and non-finite values are not
    counted."""
    dice = random.Random(3)
    values = [0.0] * 10 + [10 ** dice.uniform(-6, 2) for _ in range(990)]
    found = Distribution()
    for value in [*values, float("nan"), float("inf")]:
        found.add(value)
    assert found.count == 1000
    values.sort()
    for share in (0.005, 0.3, 0.5, 0.9, 0.99, 1.0):
        exact = values[max(0, int(share * 1000) - 1)]
        fields = found.quantile(share)
        assert fields is not None
        assert exact <= fields * (1 + 1e-9)
        assert fields <= max(exact * 1.26, 0)


def test_shares_have_bins_of_their_own() -> None:
    """Shares have bins from 0 to 1, both ends included."""
    found = Distribution(is_share=True)
    for value in (0.0, 0.5, 1.0):
        found.add(value)
    assert [(each["from"], each["to"]) for each in found.to_json()["bins"]] == [(0.0, 0.05), (0.5, 0.55), (0.95, 1.0)]


def test_counts_and_the_worst_of_many() -> None:
    """All comparisons are counted, the largest differences are kept in order, and their number is bounded."""
    report = RouteReport("r", SPEC, 1.0)
    for number in range(500):
        report.add(differing(number / 100), facts(number), 2.0)
    fields = report.to_json()
    assert (fields["agreeing"], fields["differing"], fields["compared"]) == (2, 498, 500)
    assert fields["agreement"] == 2 / 500
    assert [entry["request_id"] for entry in fields["worst"]] == [f"r{499 - place}" for place in range(MAX_WORST)]
    assert fields["tensors"]["y"]["max_absolute"]["most"] == pytest.approx(4.99)
    assert fields["worst"][0]["outputs"][0]["candidate"] == pytest.approx(5.99)
    assert len(pickle.dumps(report)) < 60_000


def test_the_last_failures_are_kept() -> None:
    """The latest failures come first, and their number is bounded."""
    report = RouteReport("r", SPEC, 1.0)
    for number in range(30):
        report.add(Verdict(ComparisonOutcome.CANDIDATE_FAILED, reason="HTTP status 503"), facts(number), 2.0)
    fields = report.to_json()
    assert fields["candidate_failed"] == 30
    assert fields["agreement"] is None
    assert [entry["request_id"] for entry in fields["failures"]] == [f"r{29 - place}" for place in range(MAX_WORST)]


def test_names_that_are_invented_fill_nothing() -> None:
    """Outputs and reasons beyond a limit are counted together, because their names come from engines."""
    report = RouteReport("r", SPEC, 1.0)
    for number in range(300):
        report.add(differing(0.0, f"output {number}"), facts(number), 2.0)
        report.drop(f"reason {number}")
    fields = report.to_json()
    assert len(fields["tensors"]) == 200
    assert fields["outputs_left_out"] == 100
    assert len(fields["dropped"]) == 51
    assert fields["dropped"]["others"] == 250


def test_texts_are_counted_by_how_they_part() -> None:
    """Texts are counted by first differing token, prefix share, and finish reason."""
    report = RouteReport("r", SPEC, 1.0)
    for text, finish in (("one two", "stop"), ("one four", "stop"), ("one two", "length")):
        found = compare_texts("choice 0", GeneratedText("one two", "stop"), GeneratedText(text, finish), 0)
        report.add(
            Verdict(ComparisonOutcome.AGREES if found.agrees else ComparisonOutcome.DIFFERS, texts=(found,)),
            facts(0),
            2.0,
        )
    fields = report.to_json()["texts"]["choice 0"]
    assert (fields["compared"], fields["equal"], fields["agreeing"]) == (3, 2, 1)
    assert fields["finishes"] == {"stop/stop": 2, "stop/length": 1}
    assert fields["first_token"]["most"] == 1
    assert fields["prefix_share"]["least"] == 4 / 8


def test_it_is_json() -> None:
    """Infinities and NaN, which JSON lacks, are written as strings."""
    report = RouteReport("r", SPEC, 1.0)
    report.add(differing(float("inf")), facts(1), 2.0)
    fields = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert fields["worst"][0]["badness"] == "inf"
    assert fields["worst"][0]["outputs"][0]["candidate"] == "inf"


OTHERS = [
    (replace(SPEC, engine="other"), False),
    (replace(SPEC, model="other"), False),
    (replace(SPEC, tolerance=ToleranceSpec(0.0, 0.0)), False),
    (replace(SPEC, sample=1.0, max_in_flight=1), True),
]


@pytest.mark.parametrize("spec, goes_on", OTHERS)
def test_another_candidate_is_another_report(spec: ShadowSpec, goes_on: bool) -> None:
    """A change of the comparison starts a new report; a change of the sample does not."""
    assert RouteReport("r", SPEC, 1.0).is_of(spec) is goes_on
