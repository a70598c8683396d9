"""Which ensembles depend on which models."""

import pytest

from engines.repository.config import read
from engines.repository.dependency_graph import dependents, problem, steps
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
    """Each model with the versions that its steps name; other models need nothing."""
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
    """Directly, or by other ensembles."""
    assert dependents(CONFIGS, names) == expected


@pytest.mark.parametrize(
    "name, said",
    [
        ("a", None),
        ("e", None),
        ("f", None),
        ("g", "ensemble g contains models that are not available or ambiguous: missing, zzz"),
        ("c1", "circular dependency between ensembles: c1 -> ... -> c2 -> c1"),
        ("self", "circular dependency between ensembles: self -> ... -> self -> self"),
        ("h", None),  # it is told when the others are settled
    ],
)
def test_what_keeps_an_ensemble_from_loading(name: str, said: str | None) -> None:
    """A model that is not there, or the ensemble itself among those that it needs."""
    assert problem(name, CONFIGS) == said
