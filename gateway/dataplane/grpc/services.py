"""The services beside Triton's own that the gateway answers: grpc.health.v1 for the fleet, and server reflection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.grpc.client import CallClient, CallHandler
from gateway.dataplane.grpc.local_call import LocalCall
from gateway.protocol import grpc_health, grpc_reflection
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.http2.stream import Stream


class HealthCall(LocalCall):
    """grpc.health.v1.Health: whether the fleet serves. `Check` answers once, `Watch` whenever that changes."""

    __slots__ = ("_is_known", "_is_watching", "_told")

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, *, is_watching: bool) -> None:
        super().__init__(client, stream, head)
        self._is_watching = is_watching
        self._told: bytes | None = None
        self._is_known = False

    def _requests_ended(self) -> None:
        service = grpc_health.read_service(self._only_message())
        self._is_known = grpc_health.is_known(service)
        if not self._is_watching and not self._is_known:
            raise grpc_health.unknown_service(service)
        self._tell()
        if not self._is_watching:
            self._succeed()

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        super().sweep(now)
        if self._told is not None and not self._is_over:
            self._tell()
            if self._client.plane.is_draining:
                self._fail(GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the gateway is stopping"))

    def _tell(self) -> None:
        plane = self._client.plane
        is_serving = plane.snapshot.is_ready(plane.settings.ready_when) and not plane.is_draining
        status = grpc_health.write_status(is_serving) if self._is_known else grpc_health.SERVICE_UNKNOWN
        if status != self._told:
            self._told = status
            self._write(status)


class ReflectionCall(LocalCall):
    """grpc.reflection: each message asks something, and is answered in its turn. Answers are many times as long as
    questions, so these wait while the client does not read."""

    __slots__ = ("_package", "_questions")

    def __init__(self, client: CallClient, stream: Stream, head: CallHead, *, package: str) -> None:
        super().__init__(client, stream, head)
        self._package = package
        self._questions: deque[bytes] = deque()

    def _take(self, message: bytes) -> None:
        self._questions.append(message)
        self._answer()

    def _requests_ended(self) -> None:
        self._answer()

    def drained(self, stream: Stream) -> None:
        self._answer()
        if not stream.is_waiting:
            super().drained(stream)

    def _answer(self) -> None:
        while self._questions and not self._stream.is_waiting and not self._is_over:
            self._write(grpc_reflection.answer(self._package, self._questions.popleft()))
        if self._has_ended and not self._questions:
            self._succeed()


SERVICE_CALLS: dict[bytes, Callable[[CallClient, Stream, CallHead], CallHandler]] = {
    grpc_health.CHECK_PATH: partial(HealthCall, is_watching=False),
    grpc_health.WATCH_PATH: partial(HealthCall, is_watching=True),
    **{path: partial(ReflectionCall, package=package) for path, package in grpc_reflection.PATHS.items()},
}
