"""Who answers a REST request: an engine, the fleet as a whole, or nobody."""

from __future__ import annotations

from gateway.dataplane.bridging.converted_exchange import ConvertedExchange
from gateway.dataplane.bridging.deciding import Deciding
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.fleet import FleetCall
from gateway.dataplane.refusal import Refusal
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler


def handler_for(client: Client, request: Request) -> Handler:
    """The handler of one request."""
    plan = request.plan
    if plan.error is not None:
        return Refusal(client, request, plan.error)
    if plan.is_fleet:
        return FleetCall(client, request)
    lane = plan.lane
    if lane is None:
        return Exchange(client, request) if plan.snapshot.all_speak_rest else Deciding(client, request)
    if lane.engine.speaks_rest:
        return Exchange(client, request)
    return ConvertedExchange(client, request, lane, plan.session)
