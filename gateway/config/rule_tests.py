"""The `tests:` section: requests and expected decisions."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.config.specs import ExpectSpec, RequestSpec, RuleTestSpec, TensorSpec
from gateway.yaml import values
from gateway.yaml.nodes import Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, list_of, one_or_many, record_of

_REQUEST = record_of(
    "a request",
    RequestSpec,
    input=one_or_many(record_of("an input", TensorSpec, shape=list_of("a shape", values.at_least(0, values.integer)))),
)
_EXPECT = record_of("what is expected", ExpectSpec)
_TEST = record_of("a test", RuleTestSpec, given=("places",), request=_REQUEST, expect=_EXPECT)


def read_test(node: Node, reading: Reading) -> RuleTestSpec | None:
    """Read one test."""
    expect = node.entries["expect"].node if isinstance(node, Map) and "expect" in node.entries else None
    places = {key: entry.node.location for key, entry in expect.entries.items()} if isinstance(expect, Map) else {}
    test = _TEST.read(node, reading, places=places)
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
