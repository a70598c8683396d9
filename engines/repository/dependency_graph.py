"""Which ensembles depend on which models: a graph made anew from the configurations whenever one of them changes.

Source: Triton core `model_repository_manager.cc` DependencyGraph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.protocol.protobuf import Message

Configs = Mapping[str, Message]


def steps(config: Message) -> dict[str, set[int]]:
    """The models that an ensemble needs, and which versions of each: -1 means any. Empty for any other model."""
    found: dict[str, set[int]] = {}
    for step in config.ensemble_scheduling.step:
        found.setdefault(step.model_name, set()).add(step.model_version)
    return found


def dependents(configs: Configs, names: Iterable[str]) -> set[str]:
    """The ensembles that need one of these models, directly or by other ensembles; not the models themselves."""
    found: set[str] = set()
    reached = set(names)
    while reached:
        reached = {
            name for name, config in configs.items() if name not in found and not reached.isdisjoint(steps(config))
        }
        found |= reached
    return found


def problem(name: str, configs: Configs) -> str | None:
    """Why an ensemble cannot be loaded whatever its models do: one is missing, or it needs itself."""
    missing = sorted(steps(configs[name]).keys() - configs.keys())
    if missing:
        return f"ensemble {name} contains models that are not available or ambiguous: {', '.join(missing)}"
    last = _back_to(name, configs)
    return last and f"circular dependency between ensembles: {name} -> ... -> {last} -> {name}"


def _back_to(name: str, configs: Configs) -> str | None:
    """A model from which a step leads back to where the walk began."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        for needed in steps(configs[current]) if current in configs else ():
            if needed == name:
                return current
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return None
