"""Whether a worker tells balancers to send it requests."""

from __future__ import annotations

from gateway.dataplane.context.data_plane import DataPlane


def is_ready(plane: DataPlane) -> bool:
    """What readiness says: `/v2/health/ready`, ServerReady, `grpc.health.v1` and the admin API's `/readyz`."""
    is_leaving = plane.is_unready or plane.is_draining
    return not is_leaving and plane.snapshot.is_ready(plane.settings.ready_when)
