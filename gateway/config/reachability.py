"""Routes that no request reaches, since an earlier one takes all that they match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge

from gateway.config.globs import PatternIndex, all_covered
from gateway.config.specs import InputMatch, MatchSpec, RouteSpec


def find_unreachable(routes: Sequence[RouteSpec]) -> list[tuple[RouteSpec, RouteSpec]]:
    """Pairs of a route that is never reached and the first earlier route that alone takes all of it.

    Routes that only several earlier ones together shadow are not found. A route is compared with those alone that may
    take all of it: an earlier one is filed under one of its conditions, the one that it shares with the fewest others.
    """
    pairs = []
    filed: dict[str, PatternIndex[int]] = {}  # by what a condition is about
    unconditional: list[int] = []  # those without a condition on a text
    for place, route in enumerate(routes):
        conditions = dict(_conditions(route.match))
        found = [unconditional]
        for what, patterns in conditions.items():
            # Who takes all of it takes all that its first pattern matches
            found += filed[what].of(patterns[0]) if what in filed else ()
        earlier = (routes[at] for at in merge(*found))
        taker = next((other for other in earlier if implies(route.match, other.match)), None)
        if taker is not None:
            pairs.append((route, taker))
        if not conditions:
            unconditional.append(place)
            continue
        sizes = {what: filed.setdefault(what, PatternIndex()).size(patterns) for what, patterns in conditions.items()}
        what = min(sizes, key=sizes.__getitem__)
        for pattern in set(conditions[what]):
            filed[what].add(pattern, place)
    return pairs


def _conditions(match: MatchSpec) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The patterns of texts, by what they are about."""
    for key in _TEXT_KEYS:
        if patterns := getattr(match, key):
            yield key, patterns
    for name, patterns in match.header.items():
        yield f"header {name}", patterns
    for name, patterns in match.parameter.items():
        yield f"parameter {name}", patterns


_TEXT_KEYS = ("model", "version", "protocol", "operation", "tenant")


def implies(narrow: MatchSpec, wide: MatchSpec) -> bool:
    """Whether every request that meets `narrow` meets `wide`."""
    return (
        all(_texts_imply(getattr(narrow, key), getattr(wide, key)) for key in _TEXT_KEYS)
        and _maps_imply(narrow.header, wide.header)
        and _maps_imply(narrow.parameter, wide.parameter)
        and (wide.has_image is None or wide.has_image is narrow.has_image)
        and all(any(_input_implies(inner, outer) for inner in narrow.input) for outer in wide.input)
    )


def _texts_imply(narrow: tuple[str, ...], wide: tuple[str, ...]) -> bool:
    """An absent condition is the widest; it implies nothing."""
    return not wide or (bool(narrow) and all_covered(narrow, wide))


def _maps_imply(narrow: Mapping[str, tuple[str, ...]], wide: Mapping[str, tuple[str, ...]]) -> bool:
    return all(key in narrow and all_covered(narrow[key], wide[key]) for key in wide)


def _input_implies(narrow: InputMatch, wide: InputMatch) -> bool:
    return (
        _texts_imply(narrow.name, wide.name)
        and _texts_imply(narrow.datatype, wide.datatype)
        and (wide.rank is None or wide.rank in (narrow.rank, None if narrow.shape is None else len(narrow.shape)))
        and (wide.shape is None or (narrow.shape is not None and _shape_implies(narrow.shape, wide.shape)))
        and (wide.bytes_at_least is None or (narrow.bytes_at_least or -1) >= wide.bytes_at_least)
    )


def _shape_implies(narrow: tuple[int, ...], wide: tuple[int, ...]) -> bool:
    return len(narrow) == len(wide) and all(outer in (-1, inner) for inner, outer in zip(narrow, wide, strict=True))
