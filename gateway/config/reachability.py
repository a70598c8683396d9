"""Routes that no request can reach, because an earlier one takes everything that they match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import merge

from gateway.config.globs import all_covered, is_exact
from gateway.config.specs import InputMatch, MatchSpec, RouteSpec


def find_unreachable(routes: Sequence[RouteSpec]) -> list[tuple[RouteSpec, RouteSpec]]:
    """Pairs of a route that is never reached and the first earlier route that alone takes all of it.

    Routes that only several earlier ones together shadow are not found.
    """
    pairs = []
    # A route for models by their exact names takes all of another one only where it names the other's first model too.
    by_model: dict[str, list[int]] = {}
    others: list[int] = []
    for index, route in enumerate(routes):
        models = route.match.model
        named = by_model.get(models[0], ()) if models else ()
        earlier = (routes[at] for at in merge(named, others))
        taker = next((other for other in earlier if implies(route.match, other.match)), None)
        if taker is not None:
            pairs.append((route, taker))
        if models and all(map(is_exact, models)):
            for model in set(models):
                by_model.setdefault(model, []).append(index)
        else:
            others.append(index)
    return pairs


def implies(narrow: MatchSpec, wide: MatchSpec) -> bool:
    """Whether every request that meets `narrow` meets `wide`."""
    return (
        _texts_imply(narrow.model, wide.model)
        and _texts_imply(narrow.version, wide.version)
        and _texts_imply(narrow.protocol, wide.protocol)
        and _texts_imply(narrow.operation, wide.operation)
        and _texts_imply(narrow.tenant, wide.tenant)
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
        _texts_imply(narrow.names, wide.names)
        and _texts_imply(narrow.datatypes, wide.datatypes)
        and (wide.rank is None or wide.rank in (narrow.rank, _rank_of(narrow.shape)))
        and (wide.shape is None or _shape_implies(narrow.shape, wide.shape))
        and (wide.bytes_at_least is None or (narrow.bytes_at_least or -1) >= wide.bytes_at_least)
    )


def _rank_of(shape: tuple[int, ...] | None) -> int | None:
    return None if shape is None else len(shape)


def _shape_implies(narrow: tuple[int, ...] | None, wide: tuple[int, ...]) -> bool:
    if narrow is None or len(narrow) != len(wide):
        return False
    return all(outer in (-1, inner) for inner, outer in zip(narrow, wide, strict=True))
