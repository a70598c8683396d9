"""The `tests:` section: requests and expected decisions."""

from __future__ import annotations

import re

from gateway.config import value_parsers
from gateway.config.routes import OPERATIONS, PROTOCOLS, read_datatype, truth_in_json
from gateway.config.rule_test_specs import ExpectSpec, RequestSpec, RuleTestSpec, TensorSpec
from gateway.yaml import values
from gateway.yaml.nodes import Items, Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, expected, keyed, one_or_many, scalar

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def parameter(text: str) -> bool | int | str:
    """A parameter's value as a body has it: true, false and whole numbers are that, all else is text."""
    text = truth_in_json(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _WHOLE.fullmatch(text) else text


def _axes(node: Node, reading: Reading) -> tuple[int, ...] | None:
    """Read a shape, which has no open axes; an empty one is that of one value."""
    if not isinstance(node, Items):
        expected(node, "a shape (a list)", reading)
        return None
    axes = [scalar(values.at_least(0, values.integer))(axis, reading) for axis in node.nodes]
    return tuple(axis for axis in axes if axis is not None)


_text = scalar(str)
_TENSOR = Record(
    "an input",
    TensorSpec,
    {"name": _text, "datatype": read_datatype, "shape": _axes, "bytes": scalar(values.size)},
    required=("name", "datatype", "shape"),
)
_REQUEST = Record(
    "a request",
    RequestSpec,
    {
        "model": _text,
        "version": _text,
        "protocol": scalar(values.one_of(PROTOCOLS)),
        "operation": scalar(values.one_of(OPERATIONS)),
        "header": keyed(value_parsers.header_name, _text),
        "parameter": keyed(value_parsers.text, scalar(parameter)),
        "input": one_or_many(_TENSOR),
        "session": _text,
        "tenant": _text,
        "has_image": scalar(values.boolean),
        "force": _text,
    },
    required=("model",),
)
_EXPECT = Record(
    "what is expected",
    ExpectSpec,
    {
        "route": scalar(values.name),
        "engine": scalar(values.name),
        "model": scalar(value_parsers.text),
        "experiment": scalar(values.name),
        "arm": scalar(values.name),
        "no_route": scalar(values.boolean),
    },
)
_TEST = Record(
    "a test",
    RuleTestSpec,
    {"name": _text, "request": _REQUEST, "expect": _EXPECT},
    required=("name", "request", "expect"),
)


def read_tests(section: Node, reading: Reading) -> list[RuleTestSpec]:
    """Read the list of tests."""
    if not isinstance(section, Items):
        expected(section, "a list of tests", reading)
        return []
    tests = [_read_test(node, reading) for node in section.nodes]
    return [test for test in tests if test is not None]


def _read_test(node: Node, reading: Reading) -> RuleTestSpec | None:
    if isinstance(node, Map) and "name" in node.entries:
        name = scalar(str)(node.entries["name"].node, Reading())
        if name is not None:
            reading.declare("test", name, node.location)
    expect = node.entries["expect"].node if isinstance(node, Map) and "expect" in node.entries else None
    places = {key: entry.node.location for key, entry in expect.entries.items()} if isinstance(expect, Map) else {}
    test = _TEST.read(node, reading, location=node.location, places=places)
    if test is None:
        return None
    if test.expect == ExpectSpec():
        reading.error(node.location, f"test {test.name!r} expects nothing: {', '.join(_EXPECT.fields)}")
    elif test.expect.no_route and test.expect != ExpectSpec(no_route=True):
        reading.error(node.location, f"test {test.name!r} expects no route, and something of one")
    return test


def check_tests(tests: list[RuleTestSpec], reading: Reading) -> None:
    """Every name that a test expects is declared; being expected is no use of it."""
    for test in tests:
        for kind in ("route", "engine", "experiment"):
            name, declared = getattr(test.expect, kind), reading.declared.get(kind, {})
            if name is not None and name not in declared:
                reading.error(test.places[kind], f"unknown {kind} {name!r}{suggest(name, declared)}")
