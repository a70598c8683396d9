"""The benchmark of many routes: the rules that it measures."""

import pytest
from bench.scale import globs, rules

from gateway.config.rules import load_texts


@pytest.mark.parametrize("routes, engines", [(10, 1), (100, 10)])
def test_its_rules_are_valid(routes: int, engines: int) -> None:
    """Each size has its routes and engines, and no finding; a change is one of the last route alone."""
    loaded, changed = (load_texts({"r.yaml": text}) for text in (rules(routes, 9000), rules(routes, 9000, "another")))
    assert loaded.rules is not None and changed.rules is not None
    assert not loaded.problems and not changed.problems
    assert (len(loaded.rules.routes), len(loaded.rules.engines)) == (routes, engines)
    assert loaded.rules.routes[:-1] == changed.rules.routes[:-1]
    assert changed.rules.routes[-1].match.model == ("another",)
    assert loaded.rules.engines == changed.rules.engines


def test_no_glob_covers_another() -> None:
    """The globs are checked without a finding."""
    loaded = load_texts({"r.yaml": globs(200)})
    assert loaded.rules is not None and not loaded.problems
