"""What the rules say of an engine's endpoints beyond their addresses, for `pointsman explain`, and what only a running
gateway knows."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.config.source_specs import SourceSpec
from gateway.config.specs import RulesSpec
from gateway.dataplane.context.priority_classes import PriorityClasses
from gateway.protocol.operations import Operation
from gateway.protocol.principal import KEY_FIELD
from gateway.protocol.request_urgency import NO_URGENCY
from gateway.routing.decision import Facts, Target


def notes_of(target: Target, facts: Facts, rules: RulesSpec) -> list[str]:
    """A line for each thing that decides which endpoint gets a request, and when; none where that is its balancing
    policy alone."""
    engine = rules.engines[target.engine]
    model = target.model or facts.model
    notes = [*_levels(engine), *_models(engine, model), *_classes(engine, facts, rules)]
    notes += [*_hedging(engine, facts), *_waits(engine)]
    unknown = [*_unknown(engine, target, model)] if notes or target.fallbacks else []
    if unknown:
        notes.append(f"not known here: {'; '.join(unknown)} (a running gateway's page shows it)")
    return notes


def _levels(engine: EngineSpec) -> Iterator[str]:
    zone = engine.locality.zone
    by_level: dict[tuple[int, bool], list[str]] = {}
    for each in engine.declared:
        level = each.priority, zone is not None and each.zone != zone
        by_level.setdefault(level, []).append(_name(each))
    if len(by_level) > 1:
        levels = [", ".join(by_level[level]) for level in sorted(by_level)]
        share = f"less than {engine.locality.healthy_share:.0%} of a level is healthy"
        own = f"; the gateway's zone is {zone}" if zone is not None else ""
        yield f"levels: {'; then '.join(levels)} (a part goes to the next level where {share}{own})"


def _models(engine: EngineSpec, model: str) -> Iterator[str]:
    where, has_several = _lists(engine), len(engine.endpoints) > 1 or bool(engine.sources)
    if where and engine.models.unknown == "refuse":
        yield f"models: 404 where all endpoints list their models, and none lists {model} (models.unknown: refuse)"
    elif where and has_several:
        yield f"models: the endpoints that list {model} at {where} get it; where none does, any of them"
    elif has_several and engine.models.remember:
        seconds = f"{engine.models.remember:g} s"
        yield f"models: no lists are read; an endpoint that refuses {model} is left for another one, for {seconds}"


def _lists(engine: EngineSpec) -> str:
    """Where its endpoints list their models; empty where nobody reads that."""
    models, traits = engine.models, engine.protocol.traits
    if models.source == "none" or not engine.health.interval:
        return ""
    if models.path is None and engine.protocol.is_v2:
        return "/v2/repository/index"
    return models.path or (traits.models_path or "").format(base=engine.base_path)


def _hedging(engine: EngineSpec, facts: Facts) -> Iterator[str]:
    if engine.hedging is not None and facts.operation is Operation.INFER:
        yield f"hedging: {engine.hedging.text}"


def _classes(engine: EngineSpec, facts: Facts, rules: RulesSpec) -> Iterator[str]:
    if engine.overload is None:
        return
    queue = engine.overload.queue
    waits = (
        f"up to {queue.max_requests} requests wait up to {queue.max_wait:g} s" if queue.max_requests else "none waits"
    )
    yield f"overload: as many requests at a time as the endpoints can do; of others, {waits} in each worker"
    classes = PriorityClasses(rules)
    if len(classes.names) > 1:
        fields = {name.lower().encode(): value.encode() for name, value in facts.headers.items()}
        if facts.principal is not None:
            fields[classes.tenant_field] = (facts.principal.tenant or "").encode()
            fields[KEY_FIELD] = facts.principal.key.encode()
        name = classes.names[classes.of_request(fields.get, NO_URGENCY)]
        yield f"class: {name}, of {', '.join(classes.names)}; the body may ask for a lower one"


def _waits(engine: EngineSpec) -> Iterator[str]:
    if engine.wait_for_endpoint:
        activator = ", and the activator is called" if engine.activator is not None else ""
        yield f"waits: up to {engine.wait_for_endpoint:g} s while no endpoint is up{activator}"


def _unknown(engine: EngineSpec, target: Target, model: str) -> Iterator[str]:
    yield "which endpoints are up, drained or busy"
    if engine.sources:
        yield "which endpoints its sources have"
    if _lists(engine) and len(engine.declared) > 1:
        yield f"which of them list {model}, and get it"
    if target.fallbacks:
        yield "whether a fallback answers"


def _name(declared: EndpointSpec | SourceSpec) -> str:
    name = declared.url if isinstance(declared, EndpointSpec) else declared.label
    return f"{name} (zone {declared.zone})" if declared.zone is not None else name
