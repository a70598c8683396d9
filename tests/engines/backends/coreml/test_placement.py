"""Measuring compute units against a clock that is moved by hand."""

import pytest

from engines.backends.coreml.placement import TIMED_RUNS, UNITS, WARM_UP_RUNS, Trial, measure
from engines.core.errors import EngineError


class Stage:
    """Predictions with a duration by unit: the first one takes five times as long."""

    def __init__(self, seconds, load_seconds=1.0):
        self.now = 0.0
        self.seconds = seconds
        self.load_seconds = load_seconds
        self.runs = dict.fromkeys(UNITS, 0)

    def clock(self):
        return self.now

    def load(self, units):
        self.now += self.load_seconds
        if units not in self.seconds:
            raise RuntimeError(f"no {units} here")

        def predict():
            self.runs[units] += 1
            self.now += self.seconds[units] * (5 if self.runs[units] == 1 else 1)

        return predict

    def measure(self):
        return measure(self.load, lambda units: {units: 1.0}, self.clock)


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({"CPU_AND_NE": 1, "ALL": 2, "CPU_AND_GPU": 3, "CPU_ONLY": 4}, "CPU_AND_NE"),
        ({"CPU_AND_NE": 4, "ALL": 3, "CPU_AND_GPU": 2, "CPU_ONLY": 1}, "CPU_ONLY"),
        ({"CPU_AND_NE": 2, "ALL": 2, "CPU_AND_GPU": 2, "CPU_ONLY": 2}, "CPU_AND_NE"),
        ({"CPU_ONLY": 9}, "CPU_ONLY"),
    ],
)
def test_the_fastest_units_are_chosen(seconds, fastest):
    """The first prediction, which still loads, does not count; equal times keep what is tried first."""
    stage = Stage(seconds)
    placed = stage.measure()
    assert placed.units == fastest
    chosen = next(trial for trial in placed.trials if trial.units == fastest)
    assert chosen == Trial(fastest, 1.0, seconds[fastest], {fastest: 1.0})
    assert [trial.units for trial in placed.trials] == list(UNITS)


def test_units_that_are_hopelessly_slow_are_given_up_after_two_runs():
    stage = Stage({"CPU_AND_NE": 1, "ALL": 100, "CPU_AND_GPU": 1, "CPU_ONLY": 4})
    assert stage.measure().units == "CPU_AND_NE"
    whole = WARM_UP_RUNS + TIMED_RUNS
    assert stage.runs == {"CPU_AND_NE": whole, "ALL": 2, "CPU_AND_GPU": whole, "CPU_ONLY": whole}


def test_units_that_cannot_run_it_are_reported_with_their_error():
    trials = Stage({"CPU_ONLY": 1}).measure().trials
    assert trials[0] == Trial("CPU_AND_NE", error="no CPU_AND_NE here")


def test_no_units_at_all_is_an_error():
    with pytest.raises(EngineError, match="runs on none of the compute units: CPU_AND_NE: no CPU_AND_NE here; ALL"):
        Stage({}).measure()
