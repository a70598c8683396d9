"""The targets that hooks choose instead of their route's."""

from __future__ import annotations

from dataclasses import replace

from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.sequence import AnySession

# Of one route: hooks may take models' names from clients.
_MAX_TARGETS = 256


def rerouted_target(snapshot: Snapshot, route_target: RouteTarget, engine: str, model: str | None) -> RouteTarget:
    """The compiled target of a route's request that goes to this engine, under this name of its model; None: the
    route's. Experiments do not count its requests, since its arm was not drawn.

    Raises: KeyError where the rules have no such engine.
    """
    origin = route_target.origin
    assert origin.hooks is not None
    key, targets = (origin.key, engine, model), origin.hooks.rerouted
    found: RouteTarget | None = targets.get(key)
    if found is None:
        if len(targets) >= _MAX_TARGETS:
            targets.clear()
        by_session = snapshot.engines[engine].spec.balance.traits.by_session
        target = replace(
            origin.spec,
            engine=engine,
            model=model or origin.spec.model,
            experiment=None,
            arm=None,
            is_forced=False,
            fallbacks=(),
            replay=None,
            is_sticky=by_session,
            sticky_endpoint=by_session,
            sticky_arm=False,
        )
        found = targets[key] = origin.to(target, snapshot.engines[engine])
    return found


def session_for(route_target: RouteTarget, session: AnySession | None) -> AnySession | None:
    """The session as a rerouted target needs it."""
    return session if route_target.needs_session else None
