"""The `experiments:` section."""

from __future__ import annotations

import pytest

from gateway.config.experiment_specs import ArmSpec, ExperimentSpec, ForcingSpec, LayerSpec
from gateway.yaml.problems import Location
from tests.config.conftest import Load

HEAD = "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: r, experiment: x}]\n"


def test_every_key_of_an_experiment_is_read(load: Load) -> None:
    """Weights are relative, in any scale; a header unit is in lower case."""
    arms = "[{name: a, engine: e, weight: 90%}, {name: b, engine: e, model: m2, weight: 10}]"
    keys = f"unit: 'header:X-User', salt: s1, control: b, layer: l, share: 20%, arms: {arms}"
    rules = load(f"{HEAD}experiments: {{x: {{{keys}}}}}\nlayers: {{l: {{unit: 'header:x-user'}}}}\n").rules
    assert rules is not None
    assert rules.experiments["x"] == ExperimentSpec(
        "x",
        (ArmSpec("a", "e", 90.0), ArmSpec("b", "e", 10.0, "m2")),
        "header:x-user",
        "s1",
        control="b",
        layer="l",
        share=0.2,
        location=Location("rules.yaml", 4, 15),
    )
    assert rules.experiments["x"].control_arm.name == "b"


@pytest.mark.parametrize("unit", ["session", "request", "header:x-user", "parameter:user"])
def test_units(load: Load, unit: str) -> None:
    """The unit of an experiment is the session, the request, a header or a parameter."""
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
    (
        "{control: old, arms: [{name: a, engine: e, weight: 1}]}",
        "4:15: error: experiment 'x' has no arm 'old' to be its control; known: a",
    ),
    (
        "{share: 120%, arms: [{name: a, engine: e, weight: 1}]}",
        "4:26: error: 120% is out of range: a share is from 0 to 1, or from 0% to 100%",
    ),
    ("{layer: up, arms: [{name: a, engine: e, weight: 1}]}", "4:26: error: unknown layer 'up'"),
]


@pytest.mark.parametrize("experiment, expected", PROBLEMS)
def test_a_wrong_experiment_is_told_where_and_what(load: Load, experiment: str, expected: str) -> None:
    """Each error is one sentence, at the wrong value or key, or at the experiment's name."""
    loaded = load(f"{HEAD}experiments: {{x: {experiment}}}\n")
    assert [str(problem) for problem in loaded.errors] == [f"rules.yaml:{expected}"]
    assert loaded.rules is None


ARMS = "arms: [{name: a, engine: e, weight: 1}]"
LAYERED = (
    "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: r, experiment: x}, {name: q, experiment: y}]\n"
)


def test_every_key_of_a_layer_is_read(load: Load) -> None:
    """Experiments and holdout may fill a layer to at most 100 %."""
    experiments = f"experiments: {{x: {{layer: l, share: 60%, {ARMS}}}, y: {{layer: l, share: 0.3, {ARMS}}}}}"
    rules = load(f"{LAYERED}{experiments}\nlayers: {{l: {{holdout: 10%, salt: s, unit: session}}}}\n").rules
    assert rules is not None
    assert rules.layers == {"l": LayerSpec("l", "session", 0.1, "s", Location("rules.yaml", 5, 10))}


LAYER_PROBLEMS = [
    (
        "share: 60%",
        "{holdout: 20%}",
        "5:10: error: layer 'l' has no room for all: holdout 0.2, x 0.6, y 0.3 are 1.1 of 1 together; "
        "set their 'share'",
    ),
    (
        "unit: request, share: 10%",
        "{}",
        "4:15: error: experiment 'x' has unit 'request', and its layer 'l' has 'session': one unit chooses in a layer",
    ),
    ("share: 10%", "{holdout: 2}", "5:23: error: 2 is out of range: a share is from 0 to 1, or from 0% to 100%"),
    ("share: 10%", "{holdouts: 2}", "5:14: error: unknown key 'holdouts' in a layer: did you mean 'holdout'?"),
]


@pytest.mark.parametrize("keys, layer, expected", LAYER_PROBLEMS)
def test_a_wrong_layer_is_told_where_and_what(load: Load, keys: str, layer: str, expected: str) -> None:
    """An error about shares that do not fit names the numbers."""
    experiments = f"experiments: {{x: {{layer: l, {keys}, {ARMS}}}, y: {{layer: l, share: 30%, {ARMS}}}}}"
    loaded = load(f"{LAYERED}{experiments}\nlayers: {{l: {layer}}}\n")
    assert [str(problem) for problem in loaded.errors] == [f"rules.yaml:{expected}"]


def test_a_layer_that_nobody_names_is_told(load: Load) -> None:
    """An unused layer is a warning."""
    loaded = load(f"{HEAD}experiments: {{x: {{{ARMS}}}}}\nlayers: {{l: {{}}}}\n")
    assert [str(problem) for problem in loaded.problems] == [
        "rules.yaml:5:10: warning: layer 'l' is not used by any experiment"
    ]
    assert loaded.rules is not None


def test_every_key_of_forcing_is_read(load: Load) -> None:
    """Forcing keys are declared as hashes, and a repr does not show them."""
    hashed = "AB" * 32
    names = "header: X-Arm, key_header: x-key, parameter: arm, key_parameter: key"
    rules = load(f"{HEAD}experiments: {{x: {{{ARMS}}}}}\nforcing: {{keys: {hashed}, {names}}}\n").rules
    assert rules is not None
    assert rules.forcing == ForcingSpec("x-arm", "x-key", (hashed.lower(),), "arm", "key")
    assert hashed.lower() not in repr(rules.forcing)


FORCING_PROBLEMS = [
    (
        "{keys: swordfish}",
        "5:17: error: a key stands here by its SHA-256, 64 hexadecimal digits: "
        "`printf %s 'the key' | sha256sum` tells it",
    ),
    ("{}", "5:10: error: forcing needs 'keys'"),
    (
        f"{{keys: {'0' * 64}, header: x-k, key_header: X-K}}",
        "5:10: error: header 'x-k' cannot have both the arm and the key",
    ),
    (
        f"{{keys: {'0' * 64}, parameter: k, key_parameter: k}}",
        "5:10: error: parameter 'k' cannot have both the arm and the key",
    ),
]


@pytest.mark.parametrize("forcing, expected", FORCING_PROBLEMS)
def test_wrong_forcing_is_told_without_the_key(load: Load, forcing: str, expected: str) -> None:
    """A plain key in a file is an error that explains how to hash it, without showing the key."""
    loaded = load(f"{HEAD}experiments: {{x: {{{ARMS}}}}}\nforcing: {forcing}\n")
    assert [str(problem) for problem in loaded.errors] == [f"rules.yaml:{expected}"]
