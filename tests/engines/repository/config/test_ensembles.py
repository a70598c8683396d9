"""Ensembles that are refused by their configuration alone."""

import pytest

from engines.repository.config import ConfigError, check, read, set_defaults
from tests.engines.repository.fakes import XY, ensemble


def steps(*steps: str, tensors: str = XY, more: str = "") -> str:
    made = ", ".join(f"{{ {step} }}" for step in steps)
    return f'name: "e" platform: "ensemble" {more} {tensors} ensemble_scheduling {{ step [ {made} ] }}'


def step(model: str, inputs: dict[str, str], outputs: dict[str, str]) -> str:
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'model_name: "{model}" {" ".join(maps)}'


M = step("m", {"x": "x"}, {"y": "y"})

WRONG = [
    (
        'name: "e" backend: "python" ensemble_scheduling { }',
        "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble",
    ),
    (steps(M, more="instance_group [ { } ]"), "instance group should not be specified for ensemble 'e'"),
    (steps(M, more="optimization { }"), "optimization should not be specified for ensemble 'e'"),
    (steps(M, more="model_warmup [ { } ]"), "model_warmup can not be specified for ensemble 'e'"),
    (steps(), "must specify 'step' for ensemble 'e'"),
    (steps(step("", {"x": "x"}, {"y": "y"})), "must specify 'model_name' in step 0 of ensemble 'e'"),
    (steps(M, step("n", {}, {"y": "z"})), "must specify 'input_map' in step 1 of ensemble 'e'"),
    (steps(step("m", {"x": "x"}, {})), "must specify 'output_map' in step 0 of ensemble 'e'"),
    (
        steps(M, step("n", {"x": "x"}, {"y": "y"})),
        "ensemble tensor 'y' can appear in an output map only once for ensemble 'e' step 1",
    ),
    (steps(step("m", {"x": "z"}, {"y": "y"})), "ensemble input 'x' for ensemble e' is not used"),
    (steps(step("m", {"x": "x"}, {"y": "z"})), "ensemble output 'y' for ensemble e' is not used"),
    (
        steps(step("m", {"a": "x", "b": "t"}, {"y": "y"})),
        "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 't', is not connected",
    ),
    (
        steps(step("m", {"a": "x", "b": "v"}, {"y": "u"}), step("n", {"x": "u"}, {"a": "v", "b": "y"})),
        "output 'y' for ensemble 'e' is not written: at least one of its depending tensors, 'v', is not connected",
    ),
    (steps(step("m", {"x": "x"}, {"y": "y", "z": "t"})), "ensemble tensor 't' is unused in ensemble 'e'"),
]


@pytest.mark.parametrize("text, error_text", WRONG)
def test_what_is_refused(text: str, error_text: str) -> None:
    """Refused are incomplete steps and maps, and tensors that are unknown, unused, written twice, or form a cycle."""
    config = read(text)
    set_defaults(config)
    with pytest.raises(ConfigError) as caught:
        check(config)
    assert caught.value.message == error_text


@pytest.mark.parametrize(
    "text",
    [
        steps(M),
        f'name: "e" {ensemble("a", "b", "c")}',
        steps(step("a", {"x": "x"}, {"l": "l", "r": "r"}), step("b", {"l": "l", "r": "r"}, {"y": "y"})),
    ],
)
def test_what_is_not_refused(text: str) -> None:
    """Chains are accepted, and tensors that fork and join."""
    config = read(text)
    set_defaults(config)
    check(config)
