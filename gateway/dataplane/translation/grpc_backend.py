"""A translated request for an engine that has a gRPC service of its own: a unary call, and its reply as over HTTP."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

import orjson

from gateway.dataplane.context.active_request import Progress, Stage, of_request
from gateway.dataplane.context.decision_log import known_of
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.snapshot import Lane
from gateway.dataplane.translation.admission import Admission
from gateway.limits.pending import Grant
from gateway.observability.metrics import RequestSeries
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import http_status
from gateway.protocol.translator import GRPC, JSON
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import UnaryReply, call_unary
from gateway.wire.http1.head import Field

_log = logging.getLogger(__name__)


class Calling:
    """Calls the method that the request's path names with its body as the message; another endpoint is tried where
    nothing has reached the first."""

    begun = False

    def __init__(self, client: Client, request: Request, decided: tuple[Lane, str | None]) -> None:
        self._client = client
        self._request = request
        self._lane, self._session = decided
        self._meter = self._lane.meter if request.plan.is_inference else None
        self._started_at = monotonic()
        self._task: asyncio.Task[None] | None = None
        self._endpoint: Endpoint | None = None
        self._called_at = 0.0

    def __repr__(self) -> str:
        return f"<Calling {self._request.plan.head.target!r} at {self._endpoint!r}>"

    def body_received(self, data: bytes, ended: bool) -> None:
        """The message, in one piece."""
        self._task = asyncio.get_running_loop().create_task(self._answer(data))

    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        if self._task is not None:
            self._task.cancel()
        series = self._series()
        series.count_error(reason)
        if status:
            series.count_failure(status, monotonic() - self._started_at)
        if self._meter is not None:
            self._meter.kept_out(reason)
        self._log(status, reason)

    def client_paused(self) -> None:
        """The reply is one piece."""

    def client_resumed(self) -> None:
        """The reply is one piece."""

    def sweep(self, now: float) -> None:
        """The call has its own limit."""

    def progress(self) -> Progress:
        url = self._endpoint.url if self._endpoint is not None else ""
        return of_request(self._request, Stage.ASKING, self._started_at, lane=self._lane, endpoint=url)

    async def _answer(self, message: bytes) -> None:
        grant: Grant | None = None
        try:
            if self._lane.limits:
                grant = await Admission(self._request, self._lane, self._session).ask(self._client.plane.limiter)
            answered = await self._call(message)
        except GatewayError as error:
            self._fail(error)
            return
        except Exception:
            _log.exception("cannot call %s", self._lane)
            self._fail(GatewayError(ErrorKind.INTERNAL, "the gateway failed to call the engine; its log says why"))
            return
        finally:
            if grant is not None:
                grant.end()
        status = 200 if answered.is_good else http_status(answered.status)
        body = answered.message if answered.is_good else orjson.dumps({"error": answered.text})
        seconds = monotonic() - self._started_at
        series = self._series()
        series.request_bytes += len(message)
        series.response_bytes += len(body)
        series.count(status, seconds, seconds, seconds)
        if self._meter is not None:
            self._meter.answered(self._request.id or b"", status, len(message), seconds)
        self._log(status, "")
        content_type = GRPC if answered.is_good else JSON
        self._client.respond(
            status, body, [*self._lane.reply_fields, *self._timing_fields, self._id_field], content_type
        )

    async def _call(self, message: bytes) -> UnaryReply:
        """Raises: GatewayError where no endpoint answers."""
        engine = self._lane.engine
        tried: tuple[Endpoint, ...] = ()
        failure = GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "no endpoint is healthy")
        for _ in range(engine.spec.retry.attempts + 1):
            endpoint = engine.choose(self._session, monotonic(), tried)
            if endpoint is None:
                break
            try:
                return await self._call_once(endpoint, message)
            except GatewayError as error:
                failure = error
                if error.kind is not ErrorKind.UPSTREAM_CONNECT or not engine.budget.take(monotonic()):
                    break
            tried = (*tried, endpoint)
            self._series().retries += 1
        raise failure

    async def _call_once(self, endpoint: Endpoint, message: bytes) -> UnaryReply:
        engine, self._endpoint = self._lane.engine, endpoint
        assert endpoint.streams is not None
        series = self._series()
        endpoint.in_flight += 1
        series.in_flight += 1
        self._called_at = monotonic()
        endpoint.breaker.sent(self._called_at)
        try:
            answered = await call_unary(
                endpoint.streams,
                self._request.plan.head.target.decode("ascii"),
                message,
                authority=endpoint.authority,
                scheme=endpoint.scheme,
                fields=engine.extra_fields,
                timeout=engine.spec.timeout,
            )
        except GatewayError:
            endpoint.breaker.failed(monotonic())
            raise
        except asyncio.CancelledError:
            endpoint.breaker.abandoned()
            raise
        finally:
            endpoint.in_flight -= 1
            series.in_flight -= 1
        engine.budget.requests += 1
        endpoint.breaker.succeeded()
        return answered

    # Telling

    def _fail(self, error: GatewayError) -> None:
        series = self._series()
        series.count_error(error.kind.value)
        series.count_failure(error.status.http, monotonic() - self._started_at)
        if self._meter is not None:
            self._meter.failed(self._request.id or b"", error.kind, error.status.http >= 500, 0)
        self._log(error.status.http, error.kind.value)
        target = self._lane.target
        where = f", endpoint {self._endpoint.url}" if self._endpoint is not None else ""
        told = error.at(f" (route '{target.route}', engine '{target.engine}'{where})")
        self._client.refuse(told, [*self._lane.reply_fields, self._id_field])

    @property
    def _timing_fields(self) -> list[Field]:
        timing, endpoint = self._request.timing, self._endpoint
        if timing is None:
            return []
        url = endpoint.url if endpoint is not None and self._lane.reply_fields else ""
        return [timing.field(0.0, self._called_at, monotonic(), url)]

    @property
    def _id_field(self) -> Field:
        return b"x-request-id", self._request.id or b""

    def _series(self) -> RequestSeries:
        return self._lane.series(self._endpoint)

    def _log(self, status: int, reason: str) -> None:
        plane, request = self._client.plane, self._request
        if not plane.tells_ends:
            return
        seconds = monotonic() - self._started_at
        url = self._endpoint.url if self._endpoint is not None else ""
        asked, request_id = request.plan.asked, request.id or b""
        known = known_of(request)
        plane.log(self._client.peer, asked, status, reason, seconds, request_id, self._lane.target, url, known)
