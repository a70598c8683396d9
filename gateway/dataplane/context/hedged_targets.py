"""The compiled target of a request that was hedged: its replies and the logs say what became of the hedge."""

from __future__ import annotations

from copy import copy
from dataclasses import replace

from gateway.dataplane.context.reply_fields import decision_fields
from gateway.dataplane.context.snapshot import RouteTarget
from gateway.protocol.hedge_outcome import HedgeOutcome


def hedged_target(route_target: RouteTarget, outcome: HedgeOutcome) -> RouteTarget:
    """The same target with this outcome, made once for each."""
    hedged = route_target.hedged
    key = outcome, route_target.bucket, route_target.meter is None
    found = hedged.get(key)
    if found is None:
        found = hedged[key] = copy(route_target)
        found.parent = None  # a circle would not be freed with its snapshot
        found.key = object()  # since its replies have other fields
        found.spec = replace(route_target.spec, hedge=outcome)
        if route_target.reply_fields:
            found.reply_fields = decision_fields(found.spec)
            found.reply_lines = b"".join(b"%b: %b\r\n" % field for field in found.reply_fields)
    return found
