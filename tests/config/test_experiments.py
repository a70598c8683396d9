"""The `experiments:` section."""

from __future__ import annotations

import pytest

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec
from gateway.yaml.location import Location
from tests.config.conftest import Load

HEAD = "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: r, experiment: x}]\n"


def test_every_key_of_an_experiment_is_read(load: Load) -> None:
    """Weights are relative, in any scale; a header unit is in lower case."""
    arms = "[{name: a, engine: e, weight: 90%}, {name: b, engine: e, model: m2, weight: 10}]"
    rules = load(f"{HEAD}experiments: {{x: {{unit: 'header:X-User', salt: s1, arms: {arms}}}}}\n").rules
    assert rules is not None
    assert rules.experiments["x"] == ExperimentSpec(
        "x",
        (ArmSpec("a", "e", 90.0), ArmSpec("b", "e", 10.0, "m2")),
        "header:x-user",
        "s1",
        Location("rules.yaml", 4, 15),
    )


@pytest.mark.parametrize("unit", ["session", "request", "header:x-user", "parameter:user"])
def test_units(load: Load, unit: str) -> None:
    """What sticks to an arm is the session, nothing, a header or a parameter."""
    rules = load(f"{HEAD}experiments: {{x: {{unit: '{unit}', arms: {{name: a, engine: e, weight: 1}}}}}}\n").rules
    assert rules is not None
    assert rules.experiments["x"].unit == unit


PROBLEMS = [
    ("{}", "4:18: error: an experiment needs 'arms'"),
    ("{arms: []}", "4:25: error: the list is empty"),
    ("{arms: [{name: a, engine: e}]}", "4:26: error: an arm needs 'weight'"),
    (
        "{arms: [{name: a, engine: e, weigth: 1}]}",
        "4:47: error: unknown key 'weigth' in an arm: did you mean 'weight'?",
    ),
    ("{arms: [{name: a, engine: e, weight: -1}]}", "4:55: error: weight -1 is negative: 0 sends no traffic to an arm"),
    ("{arms: [{name: a, engine: e, weight: most}]}", "4:55: error: 'most' is not a number"),
    (
        "{arms: [{name: a, engine: e, weight: 0}, {name: b, engine: e, weight: 0}]}",
        "4:15: error: the weights of experiment 'x' sum to zero: no arm can be chosen",
    ),
    (
        "{arms: [{name: a, engine: e, weight: 1}, {name: a, engine: e, weight: 2}]}",
        "4:15: error: experiment 'x' has 2 arms named 'a'",
    ),
    ("{arms: [{name: a, engine: f, weight: 1}]}", "4:44: error: unknown engine 'f'; known: e"),
    (
        "{unit: sesion, arms: [{name: a, engine: e, weight: 1}]}",
        "4:25: error: unknown unit 'sesion': did you mean 'session'?",
    ),
    ("{unit: 'header:', arms: [{name: a, engine: e, weight: 1}]}", "4:25: error: '' is not a header name"),
]


@pytest.mark.parametrize("experiment, expected", PROBLEMS)
def test_a_wrong_experiment_is_told_where_and_what(load: Load, experiment: str, expected: str) -> None:
    """One sentence, at the value or key that is wrong, or at the experiment's name."""
    loaded = load(f"{HEAD}experiments: {{x: {experiment}}}\n")
    assert [str(problem) for problem in loaded.errors] == [f"rules.yaml:{expected}"]
    assert loaded.rules is None
