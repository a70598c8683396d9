"""The calls that run no model: control RPCs, health, reflection.

Source: Triton's grpc_service.proto; grpc/grpc `doc/health-checking.md`, `doc/server-reflection.md`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

from engines.core.errors import EngineError, internal
from engines.host.grpc.call import BaseCall, UnaryCall
from engines.host.grpc.call_head import Head
from engines.host.grpc.replies import UNAVAILABLE, StatusError
from engines.host.grpc.server_context import CallOwner
from gateway.protocol import grpc_health, grpc_reflection
from gateway.protocol.errors import GatewayError
from gateway.protocol.protobuf import message, parse
from gateway.wire.grpc import MessageReader
from gateway.wire.http2.stream import Stream

# How often a health Watch looks again.
_WATCH_SECONDS = 1.0
# A message that asks for no tensors.
_MAX_QUESTION_BYTES = 64 * 1024


class TaskCall(UnaryCall):
    """A call that is answered by a task."""

    __slots__ = ("_task",)

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._task: asyncio.Task[None] | None = None
        super().__init__(owner, stream, head)

    def abandon(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do this; the call fails with what it raises."""
        self._task = self.front.loop.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self.fail(error)


class ControlCall(TaskCall):
    """A control RPC: the service answers."""

    __slots__ = ()

    def answer(self, data: bytes, at: int, end: int) -> None:
        rpc = self.head.plan.rpc
        assert rpc is not None
        try:
            asked = parse(f"inference.{rpc.name}Request", data[at:end])
        except ValueError:
            raise internal("Unable to parse request") from None
        self.run(self._ask(rpc.name, asked))

    async def _ask(self, rpc: str, asked: Any) -> None:
        answer = await self.front.service.rpc(rpc, asked)
        if not self.is_over:
            self.write([answer.SerializeToString()])
            self.succeed()


class HealthCall(TaskCall):
    """grpc.health.v1.Health: `Check` answers once, `Watch` whenever the answer has changed."""

    __slots__ = ()

    def answer(self, data: bytes, at: int, end: int) -> None:
        service = grpc_health.read_service(data[at:end])
        is_known = grpc_health.is_known(service)
        if self.head.plan.path == grpc_health.CHECK_PATH:
            if not is_known:
                raise grpc_health.unknown_service(service)
            self.run(self._check())
        else:
            self.run(self._watch(is_known))

    async def _check(self) -> None:
        status = await self._status()
        if not self.is_over:
            self.write([status])
            self.succeed()

    async def _watch(self, is_known: bool) -> None:
        told = b""
        while not self.is_over:
            status = await self._status() if is_known else grpc_health.SERVICE_UNKNOWN
            if status != told and not self.is_over:
                told = status
                self.write([status])
            if self.front.is_draining:
                raise StatusError(UNAVAILABLE, "the host is stopping")
            await asyncio.sleep(_WATCH_SECONDS)

    async def _status(self) -> bytes:
        if self.front.is_draining:
            return grpc_health.write_status(False)
        try:
            answer = await self.front.service.rpc("ServerReady", message("inference.ServerReadyRequest")())
        except EngineError:  # it is starting, or stopping
            return grpc_health.write_status(False)
        return grpc_health.write_status(answer.ready)


class ReflectionCall(BaseCall):
    """grpc.reflection: each message asks something, and is answered in its turn. Answers are many times as long as
    questions, so these wait while the client does not read."""

    __slots__ = ("_has_ended", "_owed", "_questions", "_reader")

    def __init__(self, owner: CallOwner, stream: Stream, head: Head) -> None:
        self._reader = MessageReader(_MAX_QUESTION_BYTES)
        self._questions: deque[bytes] = deque()
        self._has_ended = False
        self._owed = 0
        super().__init__(owner, stream, head)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if self.is_over:
            return
        try:
            for is_compressed, question in self._reader.feed(data):
                if is_compressed:
                    raise internal("a compressed question")
                self._questions.append(question)
        except (GatewayError, EngineError) as error:
            self.fail(error)
            return
        self._owed += len(data)
        self._has_ended = ended
        self._answer()

    def drained(self, stream: Stream) -> None:
        self._answer()

    def abandon(self) -> None:
        self._questions.clear()

    def _answer(self) -> None:
        package = grpc_reflection.PATHS[self.head.plan.path]
        while self._questions and not self.stream.is_waiting and not self.is_over:
            self.write([grpc_reflection.answer(package, self._questions.popleft())])
        if not self._questions and not self.is_over:
            if self._has_ended:
                self.succeed()
            else:
                owed, self._owed = self._owed, 0
                self.stream.credit(owed)
