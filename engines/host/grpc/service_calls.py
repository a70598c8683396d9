"""The calls that run no model: control RPCs, health, reflection.

Source: Triton's grpc_service.proto; grpc/grpc `doc/health-checking.md`, `doc/server-reflection.md`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from engines.core.errors import EngineError, internal
from engines.host.grpc.call import BaseCall, CallOwner, UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import StatusError
from gateway.protocol import grpc_services
from gateway.protocol.errors import GatewayError
from gateway.protocol.grpc_status import UNAVAILABLE
from gateway.protocol.protobuf import message, parse
from gateway.wire.grpc import MessageReader
from gateway.wire.http2.stream import Stream

# The interval at which a health Watch checks the status.
_WATCH_SECONDS = 1.0
# A reflection request is short.
_MAX_REFLECTION_BYTES = 64 * 1024


class TaskCall(UnaryCall):
    """A call answered by a task."""

    _task: asyncio.Task[None] | None = None

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task whose error fails the call."""

        async def guarded() -> None:
            try:
                await work
            except Exception as error:
                self.fail(error)

        self._task = asyncio.get_running_loop().create_task(guarded())

    def respond(self, message: bytes) -> None:
        if not self.is_over:
            self.write([message])
            self.succeed()


class ControlCall(TaskCall):
    """A control RPC, answered by the service."""

    def answer(self, data: bytes, at: int, end: int) -> None:
        rpc = self.head.plan.rpc
        assert rpc is not None
        try:
            request = parse(f"inference.{rpc.name}Request", data[at:end])
        except ValueError:
            raise internal("Unable to parse request") from None
        self.run(self._call_service(rpc.name, request))

    async def _call_service(self, rpc: str, request: Any) -> None:
        response = await self.front.service.rpc(rpc, request)
        self.respond(response.SerializeToString())


class HealthCall(TaskCall):
    """grpc.health.v1.Health: `Check` answers once, `Watch` whenever the answer has changed."""

    def answer(self, data: bytes, at: int, end: int) -> None:
        service = grpc_services.read_service(data[at:end])
        is_known = grpc_services.is_known(service)
        if self.head.plan.path == grpc_services.CHECK_PATH:
            if not is_known:
                raise grpc_services.unknown_service(service)
            self.run(self._check())
        else:
            self.run(self._watch(is_known))

    async def _check(self) -> None:
        self.respond(await self._status())

    async def _watch(self, is_known: bool) -> None:
        last_status = b""
        while not self.is_over:
            status = await self._status() if is_known else grpc_services.SERVICE_UNKNOWN
            if status != last_status and not self.is_over:
                last_status = status
                self.write([status])
            if self.front.is_draining:
                raise StatusError(UNAVAILABLE, "the host is stopping")
            await asyncio.sleep(_WATCH_SECONDS)

    async def _status(self) -> bytes:
        if self.front.is_draining:
            return grpc_services.write_status(False)
        try:
            answer = await self.front.service.rpc("ServerReady", message("inference.ServerReadyRequest")())
        except EngineError:  # the host starts or stops
            return grpc_services.write_status(False)
        return grpc_services.write_status(answer.ready)


class ReflectionCall(BaseCall):
    """grpc.reflection: answers each message in order. Replies are far longer than requests, so requests wait while the
    client does not read."""

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._reader = MessageReader(_MAX_REFLECTION_BYTES)
        self._requests: deque[bytes] = deque()
        self._has_ended = False
        self._owed = 0
        super().__init__(owner, stream, head)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:
                    raise internal("a compressed question")
                self._requests.append(message)
        except (GatewayError, EngineError) as error:
            self.fail(error)
            return
        self._owed += len(data)
        self._has_ended = ended
        self._answer()

    def drained(self, stream: Stream) -> None:
        self._answer()

    def abandon(self) -> None:
        self._requests.clear()

    def _answer(self) -> None:
        package = grpc_services.PATHS[self.head.plan.path]
        while self._requests and not self.stream.is_waiting and not self.is_over:
            self.write([grpc_services.answer(package, self._requests.popleft())])
        if not self._requests and not self.is_over:
            if self._has_ended:
                self.succeed()
            else:
                owed, self._owed = self._owed, 0
                self.stream.credit(owed)
