"""Counts of arms as JSON: what gateways tell each other of them, and what is kept. Zeros are left out.

A field that one version does not know is passed over by it, and one that it misses is zero: gateways of two versions
share an experiment while they are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gateway.observability.arm_stats import ArmCounts, ArmKey, Feedback

Json = dict[str, Any]

_DIGITS = 6  # behind the point: a microsecond, where it is seconds


def write_counts(counts: ArmCounts) -> Json:
    """All but its key."""
    return {name: value for name, value in _write(counts).items() if name != "key"}


def read_counts(key: ArmKey, told: Json) -> ArmCounts:
    """Raises: TypeError, ValueError, AttributeError where it is something else."""
    counts = ArmCounts(key)
    _read(counts, told)
    return counts


def _write(value: Any) -> Any:
    if is_dataclass(value):
        told = {each.name: _write(getattr(value, each.name)) for each in fields(value)}
        return {name: part for name, part in told.items() if part}
    if isinstance(value, list):
        return [_write(part) for part in value] if any(value) else []
    if isinstance(value, Mapping):
        return {str(name): _write(part) for name, part in value.items()}
    return round(value, _DIGITS) if isinstance(value, float) else value


def _read(made: Any, told: Json) -> Any:
    """Fill in what stands there; what is made has zeros, whose kinds say what is read."""
    for each in fields(made):
        if each.name not in told or each.name == "key":
            continue
        zero, part = getattr(made, each.name), told[each.name]
        if is_dataclass(zero):
            _read(zero, part)
        elif each.name == "feedback":
            made.feedback = {str(name): _read(Feedback(), inner) for name, inner in part.items()}
        elif each.name == "bins":
            made.bins = {int(number): int(count) for number, count in part.items()}
        elif isinstance(zero, dict):
            setattr(made, each.name, {str(name): int(count) for name, count in part.items()})
        elif isinstance(zero, list):
            if len(part) != len(zero):
                raise ValueError(f"{each.name} has {len(part)} buckets, not {len(zero)}")
            setattr(made, each.name, [type(zero[0])(number) for number in part])
        else:
            setattr(made, each.name, type(zero)(part))
    return made
