"""Where a generation that breaks off may go on."""

from __future__ import annotations

from gateway.dataplane.attempts.upstream_attempts import UpstreamHandler
from gateway.dataplane.context.interfaces import Handler
from gateway.dataplane.context.snapshot import Lane, Snapshot
from gateway.protocol.engine_load import Readiness
from gateway.upstream.endpoint import Endpoint

# How often one generation goes on elsewhere.
_MAX_RESUMED = 3


class ResumePolicy:
    """Collects the endpoints that broke one generation off."""

    __slots__ = ("_left", "_num_resumed", "_snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._left: tuple[Endpoint, ...] = ()
        self._num_resumed = 0

    def next_lane(self, lane: Lane, broken: UpstreamHandler | None) -> Lane | None:
        """Another endpoint's lane: of the same engine, else of another arm's; the only one there is, where it may serve
        again; None where the generation ends. `broken` is the request that did not come to its end."""
        if self._num_resumed == _MAX_RESUMED or not lane.target.resume:
            return None
        if broken is not None and broken.attempts.endpoint is not None:
            self._left = (*self._left, broken.attempts.endpoint)
        found = self._lane_with_others(lane)
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

    def _lane_with_others(self, lane: Lane) -> Lane | None:
        for other in (lane, *self._snapshot.lanes_beside(lane)):
            left = [endpoint for endpoint in other.engine.endpoints if endpoint not in self._left]
            if any(endpoint.condition is not Readiness.DOWN for endpoint in left):
                return other
        self._left = ()
        return lane if lane.engine.endpoints[0].condition is not Readiness.DOWN else None
