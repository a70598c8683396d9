"""How a request is counted that one engine has left to another."""

from __future__ import annotations

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.endpoint_waits import may_serve
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.metrics import FallbackKey, Metrics
from gateway.protocol.errors import ErrorKind


def count_fallback(
    metrics: Metrics, left: RouteTarget, target: RouteTarget, rated_id: bytes, status: int, *, is_inference: bool
) -> None:
    """The request goes from one target to another; `status` is that of the reply which is left, of HTTP."""
    reason = target.spec.stands_in_for
    assert reason is not None
    metrics.fallbacks[FallbackKey(left.spec.route, left.spec.engine, target.spec.engine, reason.value)] += 1
    if left.meter is not None and is_inference:
        left.meter.fell_back(rated_id, status)


def count_passed_over(plane: DataPlane, left: RouteTarget, rated_id: bytes, size: int, *, is_inference: bool) -> None:
    """The engine is not called, since none of its endpoints takes requests; `size` is that of the body. Its activator
    may start it."""
    if not may_serve(left.engine):
        plane.endpoint_waits.want(left.engine)
    kind = ErrorKind.NO_HEALTHY_ENDPOINT
    left.series(None).count_error(kind.value)
    if left.meter is not None and is_inference:
        left.meter.failed(rated_id, kind, True, size)
