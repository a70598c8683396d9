"""Calls that no engine's stream answers: their messages are read, their deadlines kept, their replies written here."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from gateway.dataplane.context.active_requests import Progress, Stage
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.readiness import is_ready
from gateway.dataplane.context.route_target import RouteTarget
from gateway.dataplane.grpc.interfaces import CallClient, CallHandler, ClientCall, log_call
from gateway.dataplane.grpc.reply_headers import OPENING, TRAILERS_OK, fell_silent, request_id_literal
from gateway.protocol import grpc_services
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import CANCELLED, OK
from gateway.wire.grpc import MessageReader, decompress, framed
from gateway.wire.http1.head import Field
from gateway.wire.http2.hpack import CachedHeaders, literals
from gateway.wire.http2.stream import Stream

_OPENING = CachedHeaders(OPENING)

# Of a request that names a service or a file.
_MAX_NAME_BYTES = 16 * 1024


class LocalCall(ClientCall):
    """Collects the client's messages for a subclass, which answers. It ends by `_succeed`, by `_fail`, or when its
    client is gone. While the client does not read, it is not read from."""

    _max_message_bytes = 1 << 62

    def __init__(self, client: CallClient, stream: Stream, head: CallHead) -> None:
        super().__init__(client, stream, head)
        self._reader = MessageReader(min(self._max_message_bytes, client.plane.settings.limits.max_body_bytes))
        self._message: bytes | None = None  # of a call that takes one
        self._has_begun = False

    # What a subclass adds

    def _take(self, message: bytes) -> None:
        """A message has come, decompressed.

        Raises: GatewayError(BAD_REQUEST) where no more is taken.
        """
        if self._message is not None:
            raise self._not_one("more than one")
        self._message = message

    @abstractmethod
    def _requests_ended(self) -> None:
        """The client has sent all.

        Raises: GatewayError, which ends the call.
        """

    def _only_message(self) -> bytes:
        """The message of a call that takes one.

        Raises: GatewayError(BAD_REQUEST).
        """
        message, self._message = self._message, b""
        if message is None:
            raise self._not_one("none")
        return message

    def _not_one(self, number: str) -> GatewayError:
        path = self._head.plan.path.decode("latin-1")
        return GatewayError(ErrorKind.BAD_REQUEST, f"{path} takes one message: {number} came")

    # Events of the client's stream

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        was_over = self._is_over
        if was_over:
            return
        self._active_at = monotonic()
        limits = self._client.plane.settings.limits
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:
                    message = decompress(message, self._head.plan.encoding, limits.most_inflated(len(message)))
                self._take(message)
            if not ended:
                if not self._reader.is_between_messages:
                    self._client.plane.held.hold(self, self._reader.size, self._client)
                    if self._is_over:
                        return
                self._owed += len(data)
                if not stream.is_waiting:
                    self._credit()
                return
            if not self._reader.is_between_messages:
                raise GatewayError(ErrorKind.BAD_REQUEST, "the call ends before its message is whole")
            self._has_ended = True
            self._requests_ended()
        except GatewayError as error:
            self._fail(error)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        if self._leave():
            self._count(499, "client_gone", CANCELLED)

    def drained(self, stream: Stream) -> None:
        if self._is_over:
            self._client.call_ended(stream)
        else:
            self._credit()

    def sweep(self, now: float) -> None:
        """Fail where the client is silent before its first message, or in the middle of one."""
        limit = self._client.plane.settings.limits.body_timeout
        is_due = not self._has_ended and (not self._has_begun or not self._reader.is_between_messages)
        if is_due and now - self._active_at > limit:
            self._fail(fell_silent(limit))

    def progress(self) -> Progress | None:
        if self._is_over:
            return None
        stage = Stage.ANSWERING if self._has_begun else Stage.REQUESTED if self._has_ended else Stage.READING
        plan = self._head.plan
        line, principal = plan.request_line, plan.principal
        return Progress(stage, self._started_at, self.request_id, request_line=line, principal=principal)

    def _credit(self) -> None:
        owed, self._owed = self._owed, 0
        if owed:
            self._stream.credit(owed)

    # The reply

    def _write(self, message: bytes, fields: list[Field] | None = None) -> None:
        """Send a message; `fields` go with the first."""
        self._begin(fields)
        self._stream.send_data(framed(message))

    def _succeed(self) -> None:
        if self._leave():
            self._count(200, "", OK)
            self._begin(None)
            self._stream.send_trailers(TRAILERS_OK)
            self._client.call_ended(self._stream)

    def _fail(self, error: GatewayError, route_target: RouteTarget | None = None) -> None:
        if self._leave():
            self._count(error.status.http, error.kind.value, error.status.grpc)
            self._client.call_failed(
                self._stream, error, self.request_id, route_target, begun=self._has_begun, code=None
            )
            self._client.call_ended(self._stream)

    def _begin(self, fields: list[Field] | None) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._stream.send_headers(_OPENING, literals(fields or []) + request_id_literal(self.request_id))

    def _count(self, status: int, reason: str, code: int) -> None:
        """Count and log how it ended, by the statuses of HTTP and gRPC; `reason` names the kind of a failure."""
        unrouted = self._client.plane.metrics.unrouted
        if reason:
            unrouted.count_error(reason)
        unrouted.count_failure(status, monotonic() - self._started_at)
        since, trace = self._started_at, self._stream.note
        if self._client.plane.request_log.is_on:
            log_call(self._client, self._head, status, reason, since, self.request_id, trace=trace, code=code)


class RefusedCall(LocalCall):
    """A call that is answered with an error at once."""

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, error: GatewayError) -> None:
        super().__init__(client, stream, head)
        self._fail(error)

    def _requests_ended(self) -> None:
        """It is answered."""


class HealthCall(LocalCall):
    """grpc.health.v1.Health: whether the fleet serves. `Check` answers once, `Watch` whenever that changes."""

    _max_message_bytes = _MAX_NAME_BYTES

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, *, is_watching: bool) -> None:
        super().__init__(client, stream, head)
        self._is_watching = is_watching
        self._last_status: bytes | None = None
        self._exists = False

    def _requests_ended(self) -> None:
        service = grpc_services.read_service(self._only_message())
        self._exists = grpc_services.is_known(service)
        if not self._is_watching and not self._exists:
            raise grpc_services.unknown_service(service)
        self._report()
        if not self._is_watching:
            self._succeed()

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        super().sweep(now)
        if self._last_status is not None and not self._is_over:
            self._report()
            if self._client.plane.is_draining:
                self._fail(GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the gateway is stopping"))

    def _report(self) -> None:
        is_serving = is_ready(self._client.plane)
        status = grpc_services.write_status(is_serving) if self._exists else grpc_services.SERVICE_UNKNOWN
        if status != self._last_status:
            self._last_status = status
            self._write(status)


class ReflectionCall(LocalCall):
    """grpc.reflection: each message is answered in its turn. Replies are much longer than requests, so these wait
    while the client does not read."""

    _max_message_bytes = _MAX_NAME_BYTES

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, *, package: str) -> None:
        super().__init__(client, stream, head)
        self._package = package
        self._requests: deque[bytes] = deque()

    def _take(self, message: bytes) -> None:
        self._requests.append(message)
        self._answer()

    def _requests_ended(self) -> None:
        self._answer()

    def drained(self, stream: Stream) -> None:
        self._answer()
        if not stream.is_waiting:
            super().drained(stream)

    def _answer(self) -> None:
        while self._requests and not self._stream.is_waiting and not self._is_over:
            self._write(grpc_services.answer(self._package, self._requests.popleft()))
        if self._has_ended and not self._requests:
            self._succeed()


SERVICE_CALLS: dict[bytes, Callable[[CallClient, Stream, CallHead], CallHandler]] = {
    grpc_services.CHECK_PATH: partial(HealthCall, is_watching=False),
    grpc_services.WATCH_PATH: partial(HealthCall, is_watching=True),
    **{path: partial(ReflectionCall, package=package) for path, package in grpc_services.PATHS.items()},
}
