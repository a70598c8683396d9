"""Counts added and taken from each other: workers' sums, and what came in a period."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from gateway.observability.arm_stats import ArmCounts

T = TypeVar("T")


def add(*parts: ArmCounts) -> ArmCounts:
    """All of them together, under the first one's key."""
    whole: ArmCounts = _merge(parts, sum)
    return whole


def subtract(later: ArmCounts, earlier: ArmCounts | None) -> ArmCounts:
    """What came between two looks at cumulative counts.

    Nothing is ever below 0: where counts began anew between the looks (a worker died and was not kept in the sum), what
    is missing counts as nothing, and the period is a little poorer than it was.
    """
    between: ArmCounts = _merge([later, earlier] if earlier else [later, ArmCounts(later.key)], _difference)
    return between


def _difference(values: Iterable[Any]) -> Any:
    later, earlier = values
    return max(later - earlier, type(later)())


def _merge(parts: Sequence[Any], number: Any) -> Any:
    """Dataclasses, lists and mappings merged leaf by leaf; of the names of things, the first's are kept."""
    first = parts[0]
    if isinstance(first, int | float):
        return number(parts)
    if isinstance(first, list):
        return [number(values) for values in zip(*parts, strict=True)]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for part in parts for key in part)
        like = {key: next(part[key] for part in parts if key in part) for key in keys}
        merged = {key: _merge([part.get(key, _nothing(like[key])) for part in parts], number) for key in keys}
        return {key: value for key, value in merged.items() if value}  # a bin that nothing fell into is no bin
    if not hasattr(first, "__dataclass_fields__") or type(first).__dataclass_params__.frozen:
        return first
    merged = {each.name: _merge([getattr(part, each.name) for part in parts], number) for each in fields(first)}
    return type(first)(**merged)


def _nothing(like: Any) -> Any:
    return type(like)()
