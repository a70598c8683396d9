"""The `shadow:` section of a route: which second engine is asked as well, how often, and how far answers may differ."""

from __future__ import annotations

import re

from gateway.config import value_parsers
from gateway.config.experiment_specs import ShadowSpec, ToleranceSpec
from gateway.yaml import values
from gateway.yaml.nodes import Node
from gateway.yaml.readers import Reading, Record, reference, scalar

_DEVIATION = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)
_LEAST_BYTES = 1024  # less than a head, and nothing would be mirrored
_MOST_BYTES = 256 * 1024 * 1024
_MOST_EXCERPT = 2000  # characters: a report has twenty of them, and is kept in memory


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
