"""A translated request for an engine with a gRPC service of its own: a unary call, and its reply as over HTTP."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import orjson

from gateway.dataplane.attempts.front import Attempt
from gateway.dataplane.attempts.model_refusal import is_turned_away
from gateway.dataplane.attempts.trace_fields import fields_with_trace
from gateway.dataplane.attempts.upstream_attempts import UpstreamAttempts
from gateway.dataplane.attempts.upstream_handler import UpstreamHandler
from gateway.dataplane.context.active_requests import Progress, progress_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_handler import log_request
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.arms import Meter
from gateway.protocol.advertised_models import ModelName
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import http_status
from gateway.protocol.sequence import AnySession
from gateway.protocol.translator import GRPC, JSON
from gateway.upstream.endpoint_client import UnaryReply, call_unary

_log = logging.getLogger(__name__)


class GrpcBackendCall(UpstreamHandler):
    """Calls the method that the request's path names, with the body as the message."""

    __slots__ = ("_client", "_message", "_request", "attempts")

    def __init__(self, client: Client, request: Request, route_target: RouteTarget, session: AnySession | None) -> None:
        self._client = client
        self._request = request
        self._message = b""
        self.attempts: UpstreamAttempts[asyncio.Task[None]] = UpstreamAttempts(
            client.plane, self, route_target, session, monotonic()
        )
        self.attempts.timing = request.timing

    def body_received(self, data: bytes, ended: bool) -> None:
        """Take the message, in one piece."""
        self._message = data
        self.attempts.start(self.attempts.started_at)

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        self.attempts.abandon(reason, status)
        self._report(status, reason)

    def progress(self) -> Progress:
        attempts = self.attempts
        stage, since = attempts.stage(), attempts.started_at
        return progress_of(self._request, stage, since, route_target=attempts.route_target, endpoint=attempts.url)

    # See `AttemptFront`

    def start_attempt(self, attempt: Attempt[asyncio.Task[None]], now: float) -> None:
        attempt.sent_at = now
        attempt.sent_on = asyncio.get_running_loop().create_task(self._call(attempt))

    def cancel_attempt(self, attempt: Attempt[asyncio.Task[None]]) -> None:
        task, attempt.sent_on = attempt.sent_on, None
        if task is not None:
            task.cancel()

    def is_replayable(self) -> bool:
        return True

    def model(self) -> ModelName | None:
        call = self._request.plan.call
        return (call.model, call.version or "") if call.model else None

    def field(self, name: bytes) -> bytes | None:
        return self._request.value(name)

    @property
    def is_inference(self) -> bool:
        return self._request.plan.is_inference

    def count_failed(self, meter: Meter, error: GatewayError) -> None:
        meter.failed(self._request.plan.rater + (self._request.id or b""), error.kind, error.status.http >= 500, 0)

    # The call

    async def _call(self, attempt: Attempt[asyncio.Task[None]]) -> None:
        engine, endpoint = self.attempts.route_target.engine, attempt.endpoint
        try:
            answered = await call_unary(
                endpoint,
                self._request.plan.head.target.decode("ascii"),
                self._message,
                fields=fields_with_trace(self._client.trace, attempt, engine, engine.extra_fields),
                timeout=None,  # the attempt has a deadline
            )
        except GatewayError as error:
            attempt.sent_on = None
            self.attempts.failed(error, was_sent=error.kind is not ErrorKind.UPSTREAM_CONNECT)
        except Exception:
            _log.exception("cannot call %s", self.attempts.route_target)
            attempt.sent_on = None
            text = "the gateway failed to call the engine; its log says why"
            self.attempts.fail(GatewayError(ErrorKind.INTERNAL, text))
        else:
            attempt.sent_on = None
            self._answer(attempt, answered)

    def _answer(self, attempt: Attempt[asyncio.Task[None]], answered: UnaryReply) -> None:
        attempts, route_target, request_id = self.attempts, self.attempts.route_target, self._request.id or b""
        status = 200 if answered.is_good else http_status(answered.status)
        if status != 200 and is_turned_away(attempts, status, answered.text.encode()):
            return
        body = answered.message if answered.is_good else orjson.dumps({"error": answered.text})
        now = monotonic()
        seconds = now - attempts.started_at
        timing = attempts.timing_fields(now)
        attempts.status = status
        attempts.answered(attempt, len(self._message), len(body), now, is_good=True)
        if route_target.meter is not None and self.is_inference:
            route_target.meter.answered(self._request.plan.rater + request_id, status, len(self._message), seconds)
        self._report(status, "")
        fields = [*route_target.reply_fields, *timing, (b"x-request-id", request_id)]
        self._client.respond(status, body, fields, GRPC if answered.is_good else JSON)

    def attempts_failed(self, error: GatewayError, status: int) -> None:
        self._report(status, error.kind.value)
        fields = [*self.attempts.route_target.reply_fields, (b"x-request-id", self._request.id or b"")]
        self._client.refuse(error, fields)

    def _report(self, status: int, reason: str) -> None:
        attempts, since = self.attempts, self.attempts.started_at
        log_request(
            self._client,
            self._request,
            status,
            reason,
            since,
            route_target=attempts.route_target,
            endpoint=attempts.url,
            attempts=attempts,
            sent_by_rpc=True,
        )
