"""Ensembles: the models that they depend on, and whether their tensors fit."""

import pytest

from engines.repository.config import ConfigError, read
from engines.repository.ensembles import check_mapping, dependents, problem, steps
from tests.engines.repository.fakes import PYTHON, ensemble

# e -> a, b;  f -> e;  g -> missing, a;  c1 <-> c2;  h -> c1
CONFIGS = {
    name: read(text)
    for name, text in {
        "a": PYTHON,
        "b": PYTHON,
        "e": ensemble("a", "b"),
        "f": ensemble("e"),
        "g": ensemble("zzz", "missing", "a"),
        "c1": ensemble("c2"),
        "c2": ensemble("c1"),
        "h": ensemble("c1"),
        "self": ensemble("self"),
    }.items()
}


def test_what_an_ensemble_needs() -> None:
    """An ensemble needs the models of its steps, with their versions; other models need none."""
    assert steps(CONFIGS["e"]) == {"a": {-1}, "b": {-1}}
    assert steps(CONFIGS["a"]) == {}


@pytest.mark.parametrize(
    "names, expected",
    [
        (["a"], {"e", "f", "g"}),
        (["b"], {"e", "f"}),
        (["e"], {"f"}),
        (["missing"], {"g"}),
        (["c1"], {"c2", "c1", "h"}),
        (["f"], set()),
    ],
)
def test_who_depends_on_a_model(names: list[str], expected: set[str]) -> None:
    """The ensembles that depend on a model, directly or through other ensembles."""
    assert dependents(CONFIGS, names) == expected


@pytest.mark.parametrize(
    "name, error_text",
    [
        ("a", None),
        ("e", None),
        ("f", None),
        ("g", "ensemble g contains models that are not available or ambiguous: missing, zzz"),
        ("c1", "circular dependency between ensembles: c1 -> ... -> c2 -> c1"),
        ("self", "circular dependency between ensembles: self -> ... -> self -> self"),
        ("h", None),  # after the others
    ],
)
def test_what_keeps_an_ensemble_from_loading(name: str, error_text: str | None) -> None:
    """An ensemble cannot load if a model that it needs is missing or is the ensemble itself."""
    assert problem(name, CONFIGS) == error_text


DECOUPLED = "model_transaction_policy { decoupled: true }"


def model(inputs: str, outputs: str, more: str = "") -> str:
    return f'name: "m" {more} {tensors("input", inputs)} {tensors("output", outputs)}'


def tensors(kind: str, text: str) -> str:
    """`x:FP32:-1,3` as a tensor of the configuration."""
    made = []
    for given in text.split():
        name, datatype, dims, *options = given.split(":")
        optional = ", optional: true" if "optional" in options else ""
        made.append(f'{{ name: "{name}", data_type: TYPE_{datatype}, dims: [ {dims} ]{optional} }}')
    return f"{kind} [ {', '.join(made)} ]"


def ensemble(inputs: str, outputs: str, *steps: str, more: str = "") -> str:
    """Steps are written `model x=X -> y=Y`."""
    made = []
    for step in steps:
        name, _, maps = step.partition(" ")
        given, _, written = maps.partition("->")
        pairs = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in split(given)]
        pairs += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in split(written)]
        made.append(f'{{ model_name: "{name}" model_version: -1 {" ".join(pairs)} }}')
    listed = f"ensemble_scheduling {{ step [ {', '.join(made)} ] }}"
    return f'name: "e" platform: "ensemble" {more} {tensors("input", inputs)} {tensors("output", outputs)} {listed}'


def split(maps: str) -> list[tuple[str, ...]]:
    return [tuple(pair.split("=")) for pair in maps.split()]


PLAIN = model("x:FP32:-1", "y:FP32:-1")
SIMPLE = ensemble("X:FP32:-1", "Y:FP32:-1", "m x=X -> y=Y")

# The ensemble, its models, and what is wrong.
WRONG = [
    (
        ensemble("X:FP32:-1", "Y:FP32:-1", "m z=X -> y=Y"),
        {"m": PLAIN},
        "in ensemble e, ensemble tensor X is mapping to non-existing input z in model m",
    ),
    (
        ensemble("X:FP32:-1", "Y:FP32:-1", "m x=X -> z=Y"),
        {"m": PLAIN},
        "in ensemble e, ensemble tensor Y is mapped from non-existing output z in model m",
    ),
    (
        SIMPLE,
        {"m": model("x:FP32:-1 w:FP32:1", "y:FP32:-1")},
        "in ensemble e, input w in model m is not mapped to any ensemble tensors",
    ),
    (
        ensemble("X:INT32:-1", "Y:FP32:-1", "m x=X -> y=Y"),
        {"m": PLAIN},
        "in ensemble e, ensemble tensor X: inconsistent data type: TYPE_INT32 is inferred from model e while TYPE_FP32 "
        "is inferred from model m",
    ),
    (
        ensemble("X:FP32:3", "Y:FP32:-1", "m x=X -> y=Y"),
        {"m": model("x:FP32:4", "y:FP32:-1")},
        "in ensemble e, ensemble tensor X: inconsistent shape: [3] is inferred from model e while [4] is inferred from "
        "model m",
    ),
    (
        ensemble("X:FP32:3", "Y:FP32:-1", "m x=X -> y=Y", more="max_batch_size: 8"),
        {"m": PLAIN.replace("name", "max_batch_size: 4 name", 1)},
        "ensemble e allows maximum batch size 8, but it contains model m which only allows maximum batch size to be 4",
    ),
    (
        ensemble("X:FP32:-1", "Y:FP32:-1", "d x=X -> y=a", "m x=X -> y=b", "two l=a r=b -> y=Y"),
        {"m": PLAIN, "d": PLAIN + DECOUPLED, "two": model("l:FP32:-1 r:FP32:-1", "y:FP32:-1")},
        "in ensemble e, step of model 'two' receives inputs originated from different decoupled models",
    ),
]


@pytest.mark.parametrize("text, models, error_text", WRONG)
def test_what_is_refused(text: str, models: dict[str, str], error_text: str) -> None:
    """Unknown names, datatypes and shapes that differ, and too large batches are refused with Triton's texts."""
    with pytest.raises(ConfigError) as caught:
        check_mapping(read(text), {name: read(config) for name, config in models.items()})
    assert caught.value.message == error_text


RIGHT = [
    (SIMPLE, {"m": PLAIN}, False),
    (SIMPLE, {"m": PLAIN + DECOUPLED}, True),
    (SIMPLE, {"m": model("x:FP32:-1 w:FP32:1:optional", "y:FP32:-1")}, False),
    # A model without batching has the batch as its first axis.
    (
        ensemble("X:FP32:3", "Y:FP32:3", "m x=X -> y=Y", more="max_batch_size: 8"),
        {"m": model("x:FP32:-1,3", "y:FP32:-1,3")},
        False,
    ),
    # Branches after a decoupled model may join again.
    (
        ensemble("X:FP32:-1", "Y:FP32:-1", "d x=X -> y=a", "m x=a -> y=b", "two l=a r=b -> y=Y"),
        {"m": PLAIN, "d": PLAIN + DECOUPLED, "two": model("l:FP32:-1 r:FP32:-1", "y:FP32:-1")},
        True,
    ),
]


@pytest.mark.parametrize("text, models, is_decoupled", RIGHT)
def test_what_is_not_refused(text: str, models: dict[str, str], is_decoupled: bool) -> None:
    """An ensemble is decoupled where one of its models is."""
    found = check_mapping(read(text), {name: read(config) for name, config in models.items()})
    assert found is is_decoupled
