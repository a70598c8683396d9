"""`fallback:` of routes and arms: the engines that answer where the first one cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gateway.config.fallback_specs import FallbackSpec
from gateway.config.specs import MatchSpec, RouteSpec, RulesSpec
from gateway.protocol.engine_protocols import EngineProtocol
from gateway.protocol.fallback_reasons import FallbackReason
from gateway.yaml.nodes import Map, Node
from gateway.yaml.readers import Reading, one_or_many, record_of, reference

_FALLBACK = record_of("a fallback", FallbackSpec)
_engine = reference("engine")
# What only engines with a place for text take.
_OF_TEXT = {"generate", "stream", "chat", "completion"}


def _fallback(node: Node, reading: Reading) -> FallbackSpec | None:
    """Read `{engine, model, on}` or the name of an engine."""
    if isinstance(node, Map):
        fallback = _FALLBACK(node, reading)
        return replace(fallback, on=tuple(dict.fromkeys(fallback.on))) if fallback is not None else None
    name = _engine(node, reading)
    return FallbackSpec(name, location=node.location) if name is not None else None


read_fallbacks = one_or_many(_fallback)


def check_fallbacks(rules: RulesSpec, reading: Reading) -> None:
    """A fallback is another engine or another model, has a reason of its own, and serves what the first one does.
    Called where all names are known."""
    for route in rules.routes:
        for what, first, fallbacks in _chains(route, rules):
            _check_chain(what, first, fallbacks, reading)
            for fallback in fallbacks:
                _check_protocol(what, route.match, first, fallback, rules, reading)


def _chains(route: RouteSpec, rules: RulesSpec) -> Iterator[tuple[str, FallbackSpec, tuple[FallbackSpec, ...]]]:
    """The first engine of the route or of each of its arms, and its fallbacks."""
    if route.engine is not None:
        yield f"route {route.name!r}", FallbackSpec(route.engine, route.model), route.fallback
        return
    experiment = rules.experiments[route.experiment or ""]
    for arm in experiment.arms:
        first = FallbackSpec(arm.engine, arm.model or route.model)
        yield f"arm {arm.name!r} of experiment {experiment.name!r}", first, arm.fallback or route.fallback


def _check_chain(what: str, first: FallbackSpec, fallbacks: tuple[FallbackSpec, ...], reading: Reading) -> None:
    known: dict[tuple[str, str | None], set[FallbackReason]] = {}
    for fallback in fallbacks:
        assert fallback.location is not None
        target = fallback.engine, fallback.model or first.model
        reasons = known.setdefault(target, set())
        if target == (first.engine, first.model):
            reading.error(fallback.location, f"{what} falls back to itself: name another engine, or another 'model'")
        elif reasons.issuperset(fallback.on):
            reading.error(fallback.location, f"{what} falls back to engine {fallback.engine!r} twice for one reason")
        reasons.update(fallback.on)


def _check_protocol(
    what: str, match: MatchSpec, first: FallbackSpec, fallback: FallbackSpec, rules: RulesSpec, reading: Reading
) -> None:
    """Engines of text alone and engines of tensors alone have no request in common."""
    assert fallback.location is not None
    wanted, protocol = _kind(rules.engines[first.engine].protocol), rules.engines[fallback.engine].protocol
    if match.protocol == ("openai",) or (match.operation and _OF_TEXT.issuperset(match.operation)):
        wanted = "text"
    kind = _kind(protocol)
    if wanted and kind and kind != wanted:
        serves = f"engine {fallback.engine!r} speaks {protocol.value}, which is for {kind} alone"
        reading.error(fallback.location, f"{what} cannot fall back: {serves}, and its requests are for {wanted}")


def _kind(protocol: EngineProtocol) -> str:
    """What engines of this protocol take; empty where their models tell."""
    return "text" if protocol.traits.has_dialects else "" if protocol.traits.generates_text else "tensors"
