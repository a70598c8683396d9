"""The compiled target of a request that was hedged: its replies and the logs say what became of the hedge."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from gateway.dataplane.context.reply_fields import decision_fields, lines_of
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.hedge_outcome import HedgeOutcome


def hedged_target(route_target: RouteTarget, outcome: HedgeOutcome) -> RouteTarget:
    """The same target with this outcome, made once for each."""
    hedged = route_target.hedged if not route_target.pin_fields else {}  # one that is pinned is of one request
    key = outcome, route_target.bucket, route_target.meter
    found = hedged.get(key)
    if found is None:
        found = hedged[key] = copy(route_target)
        found.parent = None  # a circle would not be freed with its snapshot
        found.key = object()  # since its replies have other fields
        found.spec = replace(route_target.spec, hedge=outcome)
        if route_target.is_named:
            found.reply_fields = decision_fields(found.spec) + route_target.pin_fields
            found.reply_lines = lines_of(found.reply_fields)
    return found
