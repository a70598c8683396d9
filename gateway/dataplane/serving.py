"""Who answers a request whose way is known, whatever its engine speaks."""

from __future__ import annotations

from gateway.dataplane.bridging.converted_exchange import ConvertedExchange
from gateway.dataplane.by_http import by_http, translated
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.snapshot import Lane


def serve(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request for this lane."""
    if lane.engine.speaks_rest or not lane.engine.speaks_grpc:
        return by_http(client, request, lane, session)
    if lane.engine.adapter.passes(request.plan.call):
        return ConvertedExchange(client, request, lane, session)
    return translated(client, request, lane, session, _by_grpc)


def _by_grpc(client: Client, request: Request, decided: tuple[Lane, str | None]) -> Handler:
    return ConvertedExchange(client, request, *decided)
