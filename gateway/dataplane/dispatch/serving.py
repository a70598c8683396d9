"""Who answers a request whose way is known, whatever its engine speaks."""

from __future__ import annotations

from functools import partial

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client, Handler
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.dispatch.by_http import by_http, translated
from gateway.dataplane.dispatch.conversation_choice import is_of_conversation, talking
from gateway.dataplane.dispatch.session_lookup import SessionLookup
from gateway.dataplane.mirroring.mirroring_handler import mirrored
from gateway.dataplane.protocol_bridge.rest_to_grpc import RestToGrpcHandler
from gateway.dataplane.rest.exchange import Exchange
from gateway.protocol.operations import OF_V2

# What an engine is asked in by the client's own bytes, where the lane passes them.
_AS_IT_IS = (None, *OF_V2)


def serve(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request that the rules send to this lane: a session may have it elsewhere."""
    kept = client.plane.keeper.recall(lane, session) if session is not None and lane.keeps_session else lane
    if kept is not None:
        return serve_mirrored(client, request, kept, session)
    assert session is not None
    return _once_recalled(client, request.timed(), lane, session)


def _once_recalled(client: Client, request: Request, lane: Lane, session: str) -> Handler:
    """A function of its own, since what a closure holds costs wherever it is used."""

    def go_on(lane: Lane, body: bytes) -> tuple[Handler, bytes]:
        return serve_mirrored(client, request, lane, session), body

    return SessionLookup(client, request, lane, session, go_on)


def serve_mirrored(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a client's own request for this lane, which its route's shadow may be asked as well."""
    if lane.shadow is None:
        return serve_by(client, request, lane, session)
    return mirrored(client, request, lane, session, serve_by)


def serve_by(client: Client, request: Request, lane: Lane, session: str | None) -> Handler:
    """The handler of a request for this lane and no other."""
    plan = request.plan
    passes = plan.passes_if_kept if lane is plan.lane else plan.leading(lane).passes
    if passes and plan.call.api in _AS_IT_IS:
        return Exchange(client, request, (lane, session))
    if lane.engine.speaks_rest or not lane.engine.speaks_grpc:
        return by_http(client, request, lane, session)
    if session and is_of_conversation(request, lane, session):
        return talking(client, request, lane, session, _by_grpc, partial(_plain, client, lane, session))
    return _plain(client, lane, session, request)


def _plain(client: Client, lane: Lane, session: str | None, request: Request) -> Handler:
    """The handler of a request by itself, for an engine that has gRPC alone."""
    if lane.engine.adapter.passes(request.plan.call):
        return RestToGrpcHandler(client, request, lane, session)
    return translated(client, request, lane, session, _by_grpc)


def _by_grpc(client: Client, request: Request, decided: tuple[Lane, str | None]) -> Handler:
    return RestToGrpcHandler(client, request, *decided)
