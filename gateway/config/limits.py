"""The `limits:` section: rates and concurrency of requests, shared by all workers."""

from __future__ import annotations

from gateway.config import value_parsers
from gateway.config.specs import LimitSpec
from gateway.yaml import values
from gateway.yaml.nodes import Items, Map, Node
from gateway.yaml.problems import suggest
from gateway.yaml.readers import Reading, Record, expected, one_or_many, reference, scalar

_PER = ("route", "tenant", "key", "session", "header:NAME")
_AMOUNTS = ("requests_per_second", "tokens_per_minute", "concurrency")


def _per(text: str) -> str:
    """A key of a limit's accounts; a header name is lower-cased."""
    kind, separator, name = text.partition(":")
    if text in _PER[:-1]:
        return text
    if separator and kind == "header":
        return f"header:{value_parsers.header_name(name)}"
    raise ValueError(f"unknown value {text!r}{suggest(text, _PER)}")


_count = scalar(values.at_least(1, values.integer))

_LIMIT = Record(
    "a limit",
    LimitSpec,
    {
        "name": scalar(values.name),
        "routes": one_or_many(reference("route")),
        "per": one_or_many(scalar(_per)),
        "requests_per_second": scalar(values.above_zero(values.number)),
        "burst": _count,
        "tokens_per_minute": _count,
        "concurrency": _count,
        "max_wait": scalar(values.duration),
    },
    required=("name",),
)


def read_limits(section: Node, reading: Reading) -> list[LimitSpec]:
    """Read the list of limits."""
    if not isinstance(section, Items):
        expected(section, "a list of limits", reading)
        reading.is_partial = True
        return []
    limits = [_read_limit(node, reading) for node in section.nodes]
    return [limit for limit in limits if limit is not None]


def _read_limit(node: Node, reading: Reading) -> LimitSpec | None:
    if isinstance(node, Map) and "name" in node.entries:
        name = scalar(values.name)(node.entries["name"].node, Reading())
        if name is not None:
            reading.declare("limit", name, node.location)
    limit = _LIMIT.read(node, reading, location=node.location)
    if limit is None:
        return None
    if all(getattr(limit, amount) is None for amount in _AMOUNTS):
        reading.error(node.location, f"limit {limit.name!r} limits nothing: it needs one of {', '.join(_AMOUNTS)}")
    if limit.burst is not None and limit.requests_per_second is None:
        reading.error(node.location, f"limit {limit.name!r} has a 'burst' without 'requests_per_second'")
    if len(set(limit.per)) < len(limit.per):
        reading.error(node.location, f"limit {limit.name!r} names something twice in 'per'")
    return limit
