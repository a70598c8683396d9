"""`fallback:` of routes and arms."""

from __future__ import annotations

import pytest

from gateway.config.fallback_specs import FallbackSpec
from gateway.protocol.fallback_reasons import DEFAULT_REASONS, FallbackReason
from tests.config.conftest import Load

ENGINES = """
version: 1
engines:
  a: {endpoints: 'http://a'}
  b: {endpoints: 'http://b'}
  text: {protocol: openai, endpoints: 'http://c'}
  tensors: {protocol: tfserving, endpoints: 'http://d'}
"""
USED = "  - {name: rest, engine: text, match: {model: x}}\n  - {name: other, engine: tensors, match: {model: y}}\n"


def test_engines_with_their_reasons(load: Load) -> None:
    """A fallback is an engine's name, or a map with `model` and `on`; without `on`, what says nothing of the request
    itself is a reason."""
    route = "{name: r, engine: a, fallback: [b, {engine: text, model: big, on: [context_length, 5xx, '429', 5xx]}]}"
    loaded = load(f"{ENGINES}routes:\n{USED}  - {route}\n")
    assert loaded.problems == ()
    assert loaded.rules is not None
    assert loaded.rules.routes[-1].fallback == (
        FallbackSpec("b", None, DEFAULT_REASONS),
        FallbackSpec(
            "text",
            "big",
            (FallbackReason.CONTEXT_LENGTH, FallbackReason.SERVER_ERROR, FallbackReason.RATE_LIMITED),
        ),
    )
    assert {reason.value for reason in DEFAULT_REASONS} == {"down", "overloaded", "deadline", "5xx", "429"}


PROBLEMS = [
    ("fallback: c", "unknown engine 'c'"),
    ("fallback: []", "the list is empty"),
    ("fallback: {engine: b, on: late}", "unknown on 'late'"),
    ("fallback: {model: m}", "a fallback needs 'engine'"),
    ("fallback: {engine: b, when: down}", "unknown key 'when' in a fallback"),
    ("fallback: [b, a]", "route 'r' falls back to itself: name another engine, or another 'model'"),
    ("fallback: [b, {engine: b, on: down}]", "route 'r' falls back to engine 'b' twice for one reason"),
    (
        "match: {protocol: openai}, fallback: tensors",
        "route 'r' cannot fall back: engine 'tensors' speaks tfserving, which is for tensors alone, and its requests "
        "are for text",
    ),
]


@pytest.mark.parametrize("keys, problem", PROBLEMS)
def test_mistakes_are_found(load: Load, keys: str, problem: str) -> None:
    """A fallback that is unknown, the first engine itself, superfluous, or of no use for the route is an error with its
    place."""
    loaded = load(f"{ENGINES}routes:\n{USED}  - {{name: r, engine: a, {keys}}}\n")
    assert loaded.rules is None
    assert any(problem in error.message and error.location.line == 11 for error in loaded.errors), loaded.errors


def test_text_and_tensors_have_no_request_in_common(load: Load) -> None:
    """Where the first engine is for text alone, the fallback must take text, and the other way round."""
    for first, second in (("text", "tensors"), ("tensors", "text")):
        loaded = load(f"{ENGINES}routes:\n{USED}  - {{name: r, engine: {first}, fallback: {second}}}\n")
        assert [error.location.line for error in loaded.errors] == [11]


def test_another_model_of_the_same_engine(load: Load) -> None:
    """An engine may be its own fallback under another model's name."""
    fallback = "{engine: a, model: long, on: context_length}"
    loaded = load(f"{ENGINES}routes:\n{USED}  - {{name: r, engine: a, fallback: {fallback}}}\n")
    assert loaded.errors == ()


def test_arms_have_the_routes_fallbacks_or_their_own(load: Load) -> None:
    """An arm's `fallback` takes the place of its route's, whose mistakes are found for each arm."""
    arms = "[{name: one, engine: a, weight: 1}, {name: two, engine: b, weight: 1, fallback: a}]"
    rules = f"{ENGINES}experiments:\n  e: {{unit: request, arms: {arms}}}\n"
    loaded = load(f"{rules}routes:\n{USED}  - {{name: r, experiment: e, fallback: b}}\n")
    assert loaded.errors == ()
    loaded = load(f"{rules}routes:\n{USED}  - {{name: r, experiment: e, fallback: a}}\n")
    assert [error.message[:51] for error in loaded.errors] == [
        "arm 'one' of experiment 'e' falls back to itself: na"[:51]
    ]
