"""What several workers have counted, as if one had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def total(uses: Iterable[T | None]) -> T | None:
    """The sum of dataclasses of numbers and of mappings to numbers, field by field; None where there is none."""
    known = [use for use in uses if use is not None]
    if not known:
        return None
    kind: Any = type(known[0])
    summed: T = kind(**{field.name: _sum([getattr(use, field.name) for use in known]) for field in fields(kind)})
    return summed


def _sum(values: list[Any]) -> Any:
    if not isinstance(values[0], Mapping):
        return sum(values)
    counted: Counter[Any] = Counter()
    for value in values:
        counted.update(value)
    return dict(counted)
