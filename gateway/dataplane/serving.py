"""Who answers a request whose way is known, whatever its engine speaks."""

from __future__ import annotations

from gateway.dataplane.bridging.converted_exchange import ConvertedExchange
from gateway.dataplane.by_http import by_http, translated
from gateway.dataplane.recalling import Recalling
from gateway.dataplane.request import Request
from gateway.dataplane.seams import Client, Handler
from gateway.dataplane.snapshot import Lane


def serve(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request that the rules send to this lane: a session may have it elsewhere."""
    if session is None or not lane.keeps_session:
        return serve_by(client, request, lane, session)
    kept = client.plane.keeper.recall(lane, session)
    if kept is not None:
        return serve_by(client, request, kept, session)

    def go_on(lane: Lane, body: bytes) -> tuple[Handler, bytes]:
        return serve_by(client, request, lane, session), body

    return Recalling(client, request, lane, session, go_on)


def serve_by(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request for this lane and no other."""
    if lane.engine.speaks_rest or not lane.engine.speaks_grpc:
        return by_http(client, request, lane, session)
    if lane.engine.adapter.passes(request.plan.call):
        return ConvertedExchange(client, request, lane, session)
    return translated(client, request, lane, session, _by_grpc)


def _by_grpc(client: Client, request: Request, decided: tuple[Lane, str | None]) -> Handler:
    return ConvertedExchange(client, request, *decided)
