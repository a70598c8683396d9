"""How many replicas the load needs. Serve's controller gets this module by value: it imports nothing of ours."""

from __future__ import annotations

from typing import Any

# The name under which replicas report it.
IN_FLIGHT = "requests_in_flight"


def scale(context: Any) -> tuple[float, dict[str, Any]]:
    """The replicas for which each has `target_ongoing_requests` in flight, for Serve's `AutoscalingContext`.

    Requests pass beside Serve's proxies, so its own counts are 0: replicas report those of their servers. Serve applies
    factors, delays and bounds to the result, and starts a first replica by itself (`POST /wake`).
    """
    reported = (context.aggregated_metrics or {}).get("requests_in_flight")
    if not reported:
        return context.target_num_replicas, {}
    return sum(reported.values()) / context.config.get_target_ongoing_requests(), {}
