"""The `routes:` section: which requests go where; the first route that matches wins."""

from __future__ import annotations

import re
from functools import partial

from gateway.config import value_parsers
from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from gateway.config.sessions import read_session
from gateway.config.specs import IdentitySpec, InputMatch, MatchSpec, RouteSpec
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.operations import MODEL_OPERATIONS, Operation
from gateway.yaml import values
from gateway.yaml.nodes import Items, Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, expected, keyed, one_or_many, reference, scalar

_DEVIATION = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
_LEAST_BYTES = 1024  # less than a head, and nothing would be mirrored
_MOST_BYTES = 256 * 1024 * 1024
_MOST_EXCERPT = 2000  # characters: a report holds twenty of them in memory


def _sample(text: str) -> float:
    """A share of requests: all of them, or fewer, but not none."""
    value = value_parsers.share(text)
    if not 0 < value <= 1:
        raise ValueError(f"a sample of {text} is out of range: more than 0, and 1 (or 100%) at the most")
    return value


def _deviation(text: str) -> float:
    """A number from 0 up, in scientific notation too: tolerances are small."""
    if not _DEVIATION.fullmatch(text):
        raise ValueError(f"{text!r} is not a number from 0 up, as 0.001 or 1e-3")
    return float(text)


def _share(text: str) -> float:
    """The same, or percent."""
    return _deviation(text[:-1]) / 100 if text.endswith("%") else _deviation(text)


_count = scalar(values.at_least(1, values.integer))
_TOLERANCE = Record("tolerance", ToleranceSpec, {"absolute": scalar(_deviation), "relative": scalar(_share)})
_SHADOW = Record(
    "shadow",
    ShadowSpec,
    {
        "engine": reference("engine"),
        "model": scalar(value_parsers.text),
        "sample": scalar(_sample),
        "max_in_flight": _count,
        "max_bytes": scalar(values.between(_LEAST_BYTES, _MOST_BYTES, values.size)),
        "timeout": scalar(values.above_zero(values.duration)),
        "top_k": _count,
        "tolerance": _TOLERANCE,
        "excerpts": scalar(values.between(0, _MOST_EXCERPT, values.integer)),
    },
    required=("engine",),
)


def read_shadow(node: Node, reading: Reading) -> ShadowSpec | None:
    """Read a route's shadow."""
    return _SHADOW.read(node, reading, location=node.location)


PROTOCOLS = ("rest", "grpc", "openai")
OPERATIONS = tuple(operation.value for operation in Operation if operation in MODEL_OPERATIONS)


def _datatype(text: str) -> str:
    if text not in DATATYPES:
        raise ValueError(f"unknown datatype {text!r}{suggest(text, DATATYPES)}")
    return text


def truth_in_json(text: str) -> str:
    """A parameter's value as text: YAML's `True` is JSON's `true`."""
    return text.lower() if text in ("True", "TRUE", "False", "FALSE") else text


def _shape(node: Node, reading: Reading) -> tuple[int, ...] | None:
    """Read a list of axes, which may be empty: the shape of a tensor with one value."""
    if not isinstance(node, Items):
        expected(node, "a shape (a list)", reading)
        return None
    axes = [scalar(values.at_least(-1, values.integer))(axis, reading) for axis in node.nodes]
    return tuple(axis for axis in axes if axis is not None)


def _input_match(name: tuple[str, ...] = (), datatype: tuple[str, ...] = (), **rest: object) -> InputMatch:
    return InputMatch(names=name, datatypes=datatype, **rest)  # type: ignore[arg-type]  # the readers see to the types


read_datatype = scalar(_datatype)
_texts = one_or_many(scalar(str))
_positive_span = scalar(values.above_zero(values.duration))

_INPUT_FIELDS = Record(
    "an input",
    _input_match,
    {
        "name": _texts,
        "datatype": one_or_many(read_datatype),
        "rank": scalar(values.at_least(0, values.integer)),
        "shape": _shape,
        "bytes_at_least": scalar(values.size),
    },
)


def _input(node: Node, reading: Reading) -> InputMatch | None:
    match = _INPUT_FIELDS(node, reading)
    if match is None:
        return None
    if match == InputMatch():
        reading.error(node.location, f"an input needs at least one of {', '.join(_INPUT_FIELDS.fields)}")
    if match.rank is not None and match.shape is not None and match.rank != len(match.shape):
        reading.error(node.location, f"shape has {len(match.shape)} axes and rank is {match.rank}: nothing has both")
    return match


_MATCH = Record(
    "match",
    MatchSpec,
    {
        "model": _texts,
        "version": _texts,
        "protocol": one_or_many(scalar(values.one_of(PROTOCOLS))),
        "operation": one_or_many(scalar(values.one_of(OPERATIONS))),
        "header": keyed(value_parsers.header_name, _texts),
        "parameter": keyed(value_parsers.text, one_or_many(scalar(truth_in_json))),
        "input": one_or_many(_input),
        "tenant": _texts,
        "has_image": scalar(values.boolean),
    },
)
_ROUTE = Record(
    "a route",
    partial(RouteSpec, match=MatchSpec()),
    {
        "name": scalar(values.name),
        "match": _MATCH,
        "engine": reference("engine"),
        "experiment": reference("experiment"),
        "model": scalar(value_parsers.text),
        "resume": scalar(values.boolean),
        "session": read_session,
        "shadow": read_shadow,
    },
    required=("name",),
    planned={"ensemble": "a route names an 'engine' or an 'experiment'"},
)

read_identity = Record(
    "identity",
    IdentitySpec,
    {
        "session_header": scalar(value_parsers.header_name),
        "session_cookie": scalar(value_parsers.text),
        "session_ttl": _positive_span,
        "session_parameters": one_or_many(scalar(value_parsers.text)),
        "tenant_header": scalar(value_parsers.header_name),
    },
)


def read_route(node: Node, reading: Reading) -> RouteSpec | None:
    """Read one route; its place is where it begins."""
    if isinstance(node, Map) and "name" in node.entries:
        name = scalar(values.name)(node.entries["name"].node, Reading())
        if name is not None:
            reading.declare("route", name, node.location)
    route = _ROUTE.read(node, reading, location=node.location)
    if route is None:
        return None
    if route.engine is not None and route.experiment is not None:
        reading.error(node.location, f"route {route.name!r} names an engine and an experiment: it can have one of them")
    if route.engine is None and route.experiment is None:
        reading.error(node.location, f"route {route.name!r} names neither an engine nor an experiment")
    if route.shadow is not None and route.session.history is not None:
        assert route.shadow.location is not None
        what = "a shadow would answer without the turns that 'session' keeps: a route can have one of them"
        reading.error(route.shadow.location, what)
    return route
