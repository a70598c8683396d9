"""Routes that no request can reach."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import reachability
from gateway.config.reachability import find_unreachable, implies
from gateway.config.specs import InputMatch, MatchSpec, RouteSpec
from tests.config.conftest import Load

IMPLIED = [
    (MatchSpec(), MatchSpec()),
    (MatchSpec(model=("chat",)), MatchSpec()),
    (MatchSpec(model=("llama-3",)), MatchSpec(model=("llama-*",))),
    (MatchSpec(model=("a", "b")), MatchSpec(model=("b", "a", "c"))),
    (MatchSpec(model=("a",), header={"x": ("1",)}), MatchSpec(header={"x": ("*",)})),
    (MatchSpec(header={"x": ("1",), "y": ("2",)}), MatchSpec(header={"x": ("1",)})),
    (MatchSpec(parameter={"p": ("1",)}), MatchSpec(parameter={"p": ("1", "2")})),
    (MatchSpec(input=(InputMatch(datatype=("FP32",), rank=4),)), MatchSpec(input=(InputMatch(rank=4),))),
    (MatchSpec(input=(InputMatch(shape=(1, 3)),)), MatchSpec(input=(InputMatch(rank=2),))),
    (MatchSpec(input=(InputMatch(shape=(1, 3)),)), MatchSpec(input=(InputMatch(shape=(-1, 3)),))),
    (MatchSpec(input=(InputMatch(bytes_at_least=9),)), MatchSpec(input=(InputMatch(bytes_at_least=8),))),
    (MatchSpec(has_image=True), MatchSpec()),
    (MatchSpec(model=("a",), has_image=False), MatchSpec(has_image=False)),
]
NOT_IMPLIED = [
    (MatchSpec(), MatchSpec(model=("*",))),
    (MatchSpec(model=("llama-*",)), MatchSpec(model=("llama-3",))),
    (MatchSpec(model=("a",)), MatchSpec(model=("a",), version=("1",))),
    (MatchSpec(header={"x": ("1",)}), MatchSpec(header={"y": ("1",)})),
    (MatchSpec(input=(InputMatch(rank=4),)), MatchSpec(input=(InputMatch(rank=4, datatype=("FP32",)),))),
    (MatchSpec(input=(InputMatch(rank=2),)), MatchSpec(input=(InputMatch(shape=(-1, -1)),))),
    (MatchSpec(input=(InputMatch(shape=(-1, 3)),)), MatchSpec(input=(InputMatch(shape=(1, 3)),))),
    (MatchSpec(input=(InputMatch(name=("a",)),)), MatchSpec(input=(InputMatch(bytes_at_least=0),))),
    (MatchSpec(), MatchSpec(has_image=False)),
    (MatchSpec(has_image=True), MatchSpec(has_image=False)),
]


@pytest.mark.parametrize("narrow, wide", IMPLIED)
def test_stricter_conditions_imply_weaker_ones(narrow: MatchSpec, wide: MatchSpec) -> None:
    """Every request that meets the first match meets the second."""
    assert implies(narrow, wide)


@pytest.mark.parametrize("narrow, wide", NOT_IMPLIED)
def test_conditions_that_do_not_imply(narrow: MatchSpec, wide: MatchSpec) -> None:
    """Some request meets the first match and not the second; uncertain cases count as not implied."""
    assert not implies(narrow, wide)


MODELS = st.lists(st.sampled_from(["a", "b", "ab", "a*", "*", "[ab]"]), max_size=2).map(tuple)
MATCHES = st.builds(MatchSpec, model=MODELS, version=st.sampled_from([(), ("1",)]))


@given(st.lists(MATCHES, max_size=8))
def test_the_first_route_that_takes_all_is_found(matches: list[MatchSpec]) -> None:
    """The lookup by model names finds the same routes as a comparison with every earlier route."""
    routes = [RouteSpec(f"r{number}", match, engine="e") for number, match in enumerate(matches)]
    plainly = [
        (route, next(other for other in routes[:index] if implies(route.match, other.match)))
        for index, route in enumerate(routes)
        if any(implies(route.match, other.match) for other in routes[:index])
    ]
    assert find_unreachable(routes) == plainly


def test_an_unreachable_route_is_a_warning_that_names_both(load: Load) -> None:
    """Unreachable routes do not prevent loading; the warning is at the unreachable route."""
    loaded = load(
        "version: 1\nengines: {e: {endpoints: 'http://a'}}\nroutes:\n"
        "  - {name: all, engine: e}\n"
        "  - {name: chat, engine: e, match: {model: chat}}\n"
    )
    assert [str(problem) for problem in loaded.problems] == [
        "rules.yaml:5:5: warning: route 'chat' is never reached: 'all' (rules.yaml:4:5) takes all that it matches"
    ]
    assert loaded.rules is not None


@pytest.mark.parametrize(
    "match_of",
    [
        lambda at: MatchSpec(model=(f"model-{at}",), header={"x-tier": ("gold",)}),
        lambda at: MatchSpec(model=(f"model-{at:05}-*",)),
        lambda at: MatchSpec(model=(f"*-{at:05}",), version=("1",)),
        lambda at: MatchSpec(model=("chat",), header={"x-user": (f"user-{at}",)}),
        lambda at: MatchSpec(tenant=(f"tenant-{at}-*",), version=("1",)),
    ],
    ids=["exact models", "beginnings", "endings", "headers of one model", "tenants"],
)
def test_many_routes_are_compared_with_few_others(
    match_of: Callable[[int], MatchSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of comparisons of 2,000 routes grows with them, not with their square."""
    compared = []
    monkeypatch.setattr(reachability, "implies", lambda narrow, wide: compared.append(wide))
    assert not find_unreachable([RouteSpec(f"r{at}", match_of(at), engine="e") for at in range(2000)])
    assert len(compared) <= 2000
