"""Where a generation that breaks off continues."""

from __future__ import annotations

from gateway.dataplane.attempts.upstream_handler import UpstreamHandler
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.context.snapshot import Snapshot
from gateway.protocol.engine_load import Readiness
from gateway.upstream.endpoint import Endpoint

_MAX_RESUMED = 3  # of one generation


class ResumePolicy:
    """Collects the endpoints that broke one generation off."""

    __slots__ = ("_left", "_num_resumed", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left: tuple[Endpoint, ...] = ()
        self._num_resumed = 0

    def next_target(self, route_target: RouteTarget, broken: UpstreamHandler | None) -> RouteTarget | None:
        """Another endpoint's target: of the same engine, else of another arm's; the only one there is, where it may
        serve again; None where the generation ends. `broken` is the request that did not come to its end."""
        if self._num_resumed == _MAX_RESUMED or not route_target.spec.resume:
            return None
        if broken is not None and broken.attempts.endpoint is not None:
            self._left = (*self._left, broken.attempts.endpoint)
        found = self._target_with_others(route_target)
        if found is not None:
            self._num_resumed += 1
            found.series(None).count_tokens().resumed += 1
        return found

    def apply(self, handler: Handler) -> None:
        """Have the rest of the generation avoid these endpoints."""
        if isinstance(handler, UpstreamHandler):
            if self._num_resumed:
                handler.attempts.resume()
            if self._left:
                handler.attempts.tried = self._left

    def _target_with_others(self, route_target: RouteTarget) -> RouteTarget | None:
        for other in (route_target, *self._snapshot.other_arms(route_target)):
            left = [endpoint for endpoint in other.engine.endpoints if endpoint not in self._left]
            if any(endpoint.condition is not Readiness.DOWN for endpoint in left):
                return other
        self._left = ()
        endpoints = route_target.engine.endpoints
        return route_target if any(each.condition is not Readiness.DOWN for each in endpoints) else None
