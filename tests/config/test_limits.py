"""The `limits:` section."""

from __future__ import annotations

import pytest

from gateway.config.limit_specs import LimitSpec
from tests.config.conftest import Load

RULES = "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes: [{name: chat, engine: e}]\n"

LIMITS = [
    ("{name: a, requests_per_second: 0.5}", LimitSpec("a", requests_per_second=0.5)),
    (
        "{name: a, per: tenant, requests_per_second: 100, burst: 7}",
        LimitSpec("a", per=("tenant",), requests_per_second=100, burst=7),
    ),
    (
        "{name: a, routes: chat, per: [route, key, 'header:X-Org'], tokens_per_minute: 5000, concurrency: 3, "
        "max_wait: 2s}",
        LimitSpec(
            "a", ("chat",), ("route", "key", "header:x-org"), tokens_per_minute=5000, concurrency=3, max_wait=2.0
        ),
    ),
]


@pytest.mark.parametrize("text, expected", LIMITS)
def test_every_key_of_a_limit_is_read(load: Load, text: str, expected: LimitSpec) -> None:
    """A single value equals a list of one, header names are in lower case."""
    loaded = load(f"{RULES}limits: [{text}]\n")
    assert loaded.problems == ()
    assert loaded.rules is not None
    assert loaded.rules.limits == (expected,)
    assert str(loaded.rules.limits[0].location) == "rules.yaml:4:10"


def test_a_burst_is_a_seconds_worth_unless_it_is_told() -> None:
    """The default burst is one second's worth, and at least one request."""
    assert LimitSpec("a", requests_per_second=100).full == 100
    assert LimitSpec("a", requests_per_second=0.1).full == 1
    assert LimitSpec("a", requests_per_second=100, burst=5).full == 5


PROBLEMS = [
    ("{requests_per_second: 1}", "4:10: error: a limit needs 'name'"),
    (
        "{name: a}",
        "4:10: error: limit 'a' limits nothing: it needs one of requests_per_second, tokens_per_minute, concurrency",
    ),
    ("{name: a, concurency: 1}", "4:20: error: unknown key 'concurency' in a limit: did you mean 'concurrency'?"),
    ("{name: a, concurrency: 0}", "4:33: error: 0 is too small: at least 1"),
    ("{name: a, requests_per_second: 0}", "4:41: error: 0 is too small: more than 0"),
    ("{name: a, concurrency: 1, burst: 2}", "4:10: error: limit 'a' has a 'burst' without 'requests_per_second'"),
    ("{name: a, concurrency: 1, per: tenent}", "4:41: error: unknown value 'tenent': did you mean 'tenant'?"),
    ("{name: a, concurrency: 1, per: [key, key]}", "4:10: error: limit 'a' names something twice in 'per'"),
    ("{name: a, concurrency: 1, routes: [chta]}", "4:45: error: unknown route 'chta': did you mean 'chat'?"),
    ("{name: a, concurrency: 1}, {name: a, concurrency: 1}", "4:37: error: limit 'a' is declared twice"),
]


@pytest.mark.parametrize("text, problem", PROBLEMS)
def test_what_is_wrong_is_said_at_its_place(load: Load, text: str, problem: str) -> None:
    """An error has line and column, and suggests the nearest correct spelling."""
    loaded = load(f"{RULES}limits: [{text}]\n")
    assert loaded.rules is None
    assert str(loaded.problems[0]).startswith(f"rules.yaml:{problem}")


def test_limits_are_a_list(load: Load) -> None:
    """A map in place of the list is rejected."""
    loaded = load(f"{RULES}limits: {{a: {{concurrency: 1}}}}\n")
    assert [str(problem) for problem in loaded.problems] == [
        "rules.yaml:4:9: error: expected a list of limits, found a map"
    ]


def test_limits_of_several_files_are_one_set(load: Load) -> None:
    """Limits keep the order of the files, and names are unique across files."""
    more = "version: 1\nlimits: [{name: b, concurrency: 2}]\n"
    loaded = load(f"{RULES}limits: [{{name: a, concurrency: 1}}]\n", more)
    assert loaded.rules is not None
    assert [limit.name for limit in loaded.rules.limits] == ["a", "b"]
