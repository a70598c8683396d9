"""The `routes:`, `limits:`, `identity:` and `tests:` sections."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.auth_specs import AccessSpec
from gateway.config.experiment_specs import ShadowSpec
from gateway.config.fallbacks import read_fallbacks
from gateway.config.hooks import read_hooks
from gateway.config.limit_specs import LimitSpec
from gateway.config.sessions import read_session
from gateway.config.specs import (
    ExpectSpec,
    IdentitySpec,
    InputMatch,
    MatchSpec,
    RequestSpec,
    RouteSpec,
    RuleTestSpec,
    TensorSpec,
)
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, list_of, one_or_many, record_of

_INPUT = record_of("an input", InputMatch, shape=list_of("a shape", values.at_least(-1, values.integer)))


def _input(node: Node, reading: Reading) -> InputMatch | None:
    match = _INPUT(node, reading)
    if match is None:
        return None
    if match == InputMatch():
        reading.error(node.location, f"an input needs at least one of {', '.join(_INPUT.fields)}")
    if match.rank is not None and match.shape is not None and match.rank != len(match.shape):
        reading.error(node.location, f"shape has {len(match.shape)} axes and rank is {match.rank}: nothing has both")
    return match


_ROUTE = record_of(
    "a route",
    RouteSpec,
    planned={"ensemble": "a route names an 'engine' or an 'experiment'"},
    match=record_of("match", MatchSpec, input=one_or_many(_input)),
    session=read_session,
    shadow=record_of("shadow", ShadowSpec),
    fallback=read_fallbacks,
    hooks=read_hooks,
)


def read_route(node: Node, reading: Reading) -> RouteSpec | None:
    """Read one route; its place is where it begins."""
    route = _ROUTE(node, reading)
    if route is None:
        return None
    if route.engine is not None and route.experiment is not None:
        reading.error(node.location, f"route {route.name!r} names an engine and an experiment: it can have one of them")
    if route.engine is None and route.experiment is None:
        reading.error(node.location, f"route {route.name!r} names neither an engine nor an experiment")
    if AccessSpec() in (*route.allow, *route.refuse):
        reading.error(node.location, f"route {route.name!r} names nobody: tenant, key or claim says whom")
    if route.shadow is not None and route.session.history is not None:
        assert route.shadow.location is not None
        what = "a shadow would answer without the turns that 'session' keeps: a route can have one of them"
        reading.error(route.shadow.location, what)
    return route


read_identity = record_of("identity", IdentitySpec)

_LIMIT = record_of("a limit", LimitSpec)
_AMOUNTS = ("requests_per_second", "tokens_per_minute", "concurrency")


def read_limit(node: Node, reading: Reading) -> LimitSpec | None:
    """Read one limit."""
    limit = _LIMIT(node, reading)
    if limit is None:
        return None
    if all(getattr(limit, amount) is None for amount in _AMOUNTS):
        reading.error(node.location, f"limit {limit.name!r} limits nothing: it needs one of {', '.join(_AMOUNTS)}")
    if limit.burst is not None and limit.requests_per_second is None:
        reading.error(node.location, f"limit {limit.name!r} has a 'burst' without 'requests_per_second'")
    if len(set(limit.per)) < len(limit.per):
        reading.error(node.location, f"limit {limit.name!r} names something twice in 'per'")
    return limit


_REQUEST = record_of(
    "a request",
    RequestSpec,
    input=one_or_many(record_of("an input", TensorSpec, shape=list_of("a shape", values.at_least(0, values.integer)))),
)
_EXPECT = record_of("what is expected", ExpectSpec)
_TEST = record_of("a test", RuleTestSpec, preset=("places",), request=_REQUEST, expect=_EXPECT)


def read_test(node: Node, reading: Reading) -> RuleTestSpec | None:
    """Read one test."""
    expect = node.entries["expect"].node if isinstance(node, Map) and "expect" in node.entries else None
    places = {key: entry.node.location for key, entry in expect.entries.items()} if isinstance(expect, Map) else {}
    test = _TEST(node, reading, places=places)
    if test is None:
        return None
    if test.expect == ExpectSpec():
        reading.error(node.location, f"test {test.name!r} expects nothing: {', '.join(_EXPECT.fields)}")
    elif test.expect.no_route and test.expect != ExpectSpec(no_route=True):
        reading.error(node.location, f"test {test.name!r} expects no route, and something of one")
    return test


def check_tests(tests: Iterable[RuleTestSpec], reading: Reading) -> None:
    """Every name that a test expects is declared; being expected is no use of it."""
    for test in tests:
        for kind in ("route", "engine", "experiment"):
            name, declared = getattr(test.expect, kind), reading.declared.get(kind, {})
            if name is not None and name not in declared:
                reading.error(test.places[kind], f"unknown {kind} {name!r}{suggest(name, declared)}")
