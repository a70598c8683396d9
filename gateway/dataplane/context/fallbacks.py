"""The engines that answer in place of a target's, compiled with the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from gateway.protocol.advertised_models import ModelName
from gateway.protocol.fallback_reasons import FallbackReason, Reasons
from gateway.routing.decision import Target
from gateway.upstream.engine import Engine

AnyTarget = TypeVar("AnyTarget")
# Makes a compiled target; True: its requests have been admitted by the limits.
MakeTarget = Callable[[Target, Engine, "Fallbacks[AnyTarget] | None", bool], AnyTarget]


class Fallbacks(Generic[AnyTarget]):
    """The fallbacks of one target, in order. There is a compiled target for each reason, as its replies name it."""

    __slots__ = ("_engines", "_make", "_origin", "_targets")

    def __init__(self, origin: Target, engines: Mapping[str, Engine], make: MakeTarget[AnyTarget]) -> None:
        self._origin = origin
        self._engines = engines
        self._make = make
        self._targets: dict[tuple[int, FallbackReason, bool], AnyTarget] = {}

    def may_follow(self, reasons: Reasons) -> bool:
        """Whether some fallback is for one of these reasons."""
        return any(reason in fallback.on for fallback in self._origin.fallbacks for reason in reasons)

    def find(self, reasons: Reasons, now: float, *, was_admitted: bool) -> AnyTarget | None:
        """The target of the first fallback that is for one of these reasons; None where there is none. One that cannot
        take requests now is left out while another can; `was_admitted`: limits have counted the request."""
        chosen = None
        for place, fallback in enumerate(self._origin.fallbacks):
            reason = next((each for each in reasons if each in fallback.on), None)
            if reason is None:
                continue
            if takes_requests(self._engines[fallback.engine], now):
                return self._target(place, reason, was_admitted)
            chosen = chosen or (place, reason)
        return None if chosen is None else self._target(*chosen, was_admitted)

    def _target(self, place: int, reason: FallbackReason, was_admitted: bool) -> AnyTarget:
        origin = self._origin
        fallback = origin.fallbacks[place]
        key = place, reason, was_admitted
        found = self._targets.get(key)
        if found is None:
            target = replace(
                origin,
                engine=fallback.engine,
                model=fallback.model or origin.model,
                fallbacks=origin.fallbacks[place + 1 :],
                stands_in_for=reason,
                is_sticky=False,
                sticky_endpoint=False,
                sticky_arm=False,
                replay=None,
            )
            more = Fallbacks(target, self._engines, self._make) if target.fallbacks else None
            found = self._targets[key] = self._make(target, self._engines[fallback.engine], more, was_admitted)
        return found


def takes_requests(engine: Engine, now: float, model: ModelName | None = None) -> bool:
    """Whether some endpoint, of those that serve the model, is ready, not drained, and not failing; or the engine
    refuses the model."""
    serving = engine.serving(model, now)
    for endpoint in serving:
        if endpoint.takes_new and (endpoint.breaker.is_spotless or endpoint.breaker.allows(now)):
            return True
    return not serving and model is not None
