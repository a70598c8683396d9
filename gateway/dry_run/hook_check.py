"""The hooks that rules name, loaded as workers load them: rules whose code cannot be used are refused."""

from __future__ import annotations

from dataclasses import replace

from gateway.config.rules import LoadedRules
from gateway.hooks.loader import HookLoadError, load_hook
from gateway.yaml.problems import Location, Problem


def with_hooks(loaded: LoadedRules) -> LoadedRules:
    """The rules with what is wrong with their hooks; none where one cannot be loaded."""
    if loaded.rules is None:
        return loaded
    found: dict[Problem, None] = {}
    for route in loaded.rules.routes:
        for spec in route.hooks:
            try:
                load_hook(spec)
            except HookLoadError as error:
                place = error.location or spec.location or Location("rules", 1, 1)
                found[Problem(place, f"route {route.name!r}: hook {spec.use!r}: {error}")] = None
    if not found:
        return loaded
    return replace(loaded, rules=None, problems=(*loaded.problems, *found))
