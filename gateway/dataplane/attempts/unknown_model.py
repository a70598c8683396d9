"""The refusal of a model that no endpoint of an engine lists, with names that the caller may have meant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice

from gateway.dataplane.attempts.front import AttemptFront
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.routing.decision import Facts
from gateway.upstream.endpoint import Endpoint

# Names that are looked at, compared and shown: a client that invents names must not cost more than others.
_MAX_LOOKED_AT = 2000
_MAX_COMPARED = 64
_MAX_SHOWN = 3
_MAX_LENGTH = 100


def no_endpoint(
    front: AttemptFront,
    route_target: RouteTarget,
    model: ModelName | None,
    now: float,
    lists_are_old: Callable[[Collection[Endpoint]], None],
) -> GatewayError:
    """Why there is no endpoint for a request; `model` is its model by the engine's name."""
    engine = route_target.engine
    error, named = engine.no_endpoint(model, now), front.model()
    if error.kind is not ErrorKind.NOT_FOUND or named is None:
        return error
    if engine.is_due("lists", now):  # the model may have been loaded since
        lists_are_old(engine.endpoints)
    text = f"Request for unknown model: '{named[0]}' is not found"
    known = front.facts()
    may_know = known is not None and route_target.is_named and route_target.spec.model is None
    if known is not None and may_know and engine.is_due("near names", now):
        snapshot, facts = known
        near = [
            name
            for name in near_names(named[0], engine.models)
            if _is_usable(snapshot, replace(facts, model=name, version=None), engine.name)
        ]
        if near:
            text += f"; near names: {', '.join(map(repr, near))}"
    return GatewayError(ErrorKind.NOT_FOUND, text)


def near_names(name: str, names: Iterable[str]) -> list[str]:
    """The names nearest to one, of those that begin alike."""
    if not name or len(name) > _MAX_LENGTH:
        return []
    wanted = name.casefold()
    short = (other for other in islice(names, _MAX_LOOKED_AT) if len(other) <= _MAX_LENGTH)
    folded = {other.casefold(): other for other in short if other[:1].casefold() == wanted[:1]}
    alike = sorted(folded, key=lambda other: (other[:3] != wanted[:3], abs(len(other) - len(wanted)), other))
    return [folded[other] for other in get_close_matches(wanted, alike[:_MAX_COMPARED], _MAX_SHOWN)]


def _is_usable(snapshot: Snapshot, facts: Facts, engine: str) -> bool:
    """Whether the caller's requests of this model go to the same engine."""
    table = snapshot.table
    return not table.hides(facts) and any(
        target.engine == engine and target.model is None for target in table.targets_for(facts)
    )
