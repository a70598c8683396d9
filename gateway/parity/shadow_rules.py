"""The rules of the parity process: each mirrored route leads to its shadow's engine, and to nobody else."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.experiment_specs import ShadowSpec
from gateway.config.specs import MatchSpec, RouteSpec, RulesSpec

Key = tuple[str, str | None]  # a route, and the model's name at the engine that has answered


def shadow_rules(rules: RulesSpec) -> tuple[RulesSpec, dict[Key, int]]:
    """The rules, and of each mirrored route, with each name that its model may have there, the place of its target."""
    routes: list[RouteSpec] = []
    places: dict[Key, int] = {}
    for route in rules.routes:
        if route.shadow is None:
            continue
        for model in dict.fromkeys(_models(route, rules)):
            places[route.name, model] = len(routes)
            routes.append(
                RouteSpec(route.name, MatchSpec(), engine=route.shadow.engine, model=route.shadow.model or model)
            )
    engines = {route.engine: rules.engines[route.engine] for route in routes if route.engine is not None}
    identity = replace(rules.identity, session_cookie=None)
    return RulesSpec(engines, tuple(routes), identity=identity, digest=rules.digest), places


def shadows(rules: RulesSpec) -> dict[str, ShadowSpec]:
    """By route."""
    return {route.name: route.shadow for route in rules.routes if route.shadow is not None}


def _models(route: RouteSpec, rules: RulesSpec) -> list[str | None]:
    """What the engines of a route may call the model; None: as it was asked for."""
    if route.experiment is None:
        return [route.model]
    return [arm.model or route.model for arm in rules.experiments[route.experiment].arms]
