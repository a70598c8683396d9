"""Answers how many tokens a conversation has, for an engine that cannot be asked: V2 has no operation for it."""

from __future__ import annotations

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import LocalHandler
from gateway.dataplane.context.request_body import document
from gateway.dataplane.context.route_target import RouteTarget
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.messages_request import read_count_request
from gateway.protocol.llm.token_count import estimated_count


class TokenEstimateHandler(LocalHandler):
    """Answers by an estimate, as the usage of such an engine's replies is one."""

    def __init__(self, client: Client, request: Request, route_target: RouteTarget) -> None:
        super().__init__(client, request)
        self._route_target = route_target
        self._pieces: list[bytes] = []

    def body_received(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if not ended:
            self._client.hold_body()
            return
        spec, fields = self._route_target.engine.spec, self._route_target.reply_fields
        try:
            if not spec.protocol.traits.generates_text:
                what = f"engine '{spec.name}' speaks {spec.protocol.value}, which has no language models"
                raise GatewayError(ErrorKind.UNSUPPORTED, what)
            body = document(self._request, b"".join(self._pieces), self._client.plane.settings.limits)
            self._respond(200, estimated_count(read_count_request(body)), fields)
        except GatewayError as error:
            self._refuse(self._route_target.nameless(error), fields)
