"""Sequences fail over to another endpoint over gRPC too, and where client and engine speak different protocols."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.protocol.engine_load import Readiness
from gateway.wire.grpc import framed
from tests.dataplane.adding import Sums, parameters, step
from tests.dataplane.grpc.peers import STREAM, UNARY, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, answers, grpc_stage, request
from tests.dataplane.stage import Engine, run

UNAVAILABLE = 14


class Server:
    """An engine that adds, by REST, by gRPC or by both."""

    def __init__(self) -> None:
        self.sums = Sums()
        self.rest = Engine(self.sums.by_rest)
        self.grpc = GrpcEngine(self.sums.by_grpc)

    async def start(self, speaks: str) -> str:
        """Start the engine and return its endpoint as the rules write it."""
        if "rest" in speaks:
            await self.rest.start()
        if "grpc" in speaks:
            await self.grpc.start()
        if speaks == "rest":
            return f"'{self.rest.url}'"
        return f"'{self.grpc.url}'" if speaks == "grpc" else f"{{url: '{self.rest.url}', grpc: '{self.grpc.address}'}}"

    async def stop(self) -> None:
        self.rest.stop()
        await self.grpc.stop()


Fleet = tuple[GrpcStage, GrpcClient, list[Server]]


@asynccontextmanager
async def fleet(tmp_path: Path, speaks: str = "grpc", **more: Any) -> AsyncIterator[Fleet]:
    """A data plane with two servers, whose route replays sequences."""
    servers = [Server() for _ in range(2)]
    named = ", ".join([await server.start(speaks) for server in servers])
    text = f"version: 1\nengines: {{it: {{endpoints: [{named}], health: {{interval: 0}}, timeout: 5s}}}}\n"
    text += "routes: [{name: all, engine: it, session: {sequences: replay}}]\n"
    async with grpc_stage(text, tmp_path, **more) as it:
        yield it, await it.grpc(), servers
        for server in servers:
            server.grpc.script = server.sums.by_grpc
    for server in servers:
        await server.stop()


def message(number: int, value: int, **ends: bool) -> bytes:
    return request(parameters={name: reply for name, reply in parameters(number, value, **ends).items() if reply})


def total(call: Call) -> int:
    assert call.value("grpc-status") == "0", call
    return int(service_pb2.ModelInferResponse.FromString(call.messages[0]).id)


async def asked(fleet: Fleet, by: str, value: int, **ends: bool) -> int:
    """Send a step by REST or by gRPC and return the sum."""
    it, client, _ = fleet
    if by == "grpc":
        return total(await client.ask(message(7, value, **ends)))
    reply = await it.ask(step(7, value, **ends))
    assert reply.status == 200, reply.body
    return int(json.loads(reply.body)["id"])


async def begun(fleet: Fleet, ways: str = "grpc grpc grpc") -> int:
    """Send a sequence's first three values; return the index of its server."""
    for index, by in enumerate(ways.split()):
        assert await asked(fleet, by, index + 1, start=not index) == [1, 3, 6][index]
    return next(index for index, server in enumerate(fleet[2]) if 7 in server.sums.totals)


def put_down(fleet: Fleet, at: int) -> None:
    server = fleet[2][at]
    for endpoint in fleet[0].endpoints():
        if endpoint.url in (server.rest.url, server.grpc.url):
            endpoint.condition = Readiness.DOWN


@pytest.mark.parametrize("speaks", ["rest", "grpc", "rest and grpc"])
@pytest.mark.parametrize("ways", ["grpc grpc grpc", "rest rest rest", "rest grpc rest"])
def test_inputs_are_told_as_they_had_come(tmp_path: Path, speaks: str, ways: str) -> None:
    """Whatever the protocols of clients and engines, the other endpoint gets all inputs in order."""

    async def scene() -> None:
        async with fleet(tmp_path, speaks) as it:
            at = await begun(it, ways)
            put_down(it, at)
            assert await asked(it, "grpc", 4) == 10
            assert it[2][1 - at].sums.received == [1, 2, 3, 4]
            assert await asked(it, "rest", 5, end=True) == 15
            assert it[0].plane.affinity.book.counts.sequences_moved.total() == 1

    run(scene())


def test_a_call_that_is_broken_off_is_told_to_another(tmp_path: Path) -> None:
    """When the endpoint's connection breaks before the reply, the other endpoint gets the call after all earlier
    inputs."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            engine = it[2][at].grpc

            async def dies(call: Call) -> None:
                await call.over()
                engine.stop_listening()
                engine.break_connections()

            engine.script = dies
            assert await asked(it, "grpc", 4) == 10
            assert await asked(it, "grpc", 5) == 15

    run(scene())


def test_a_compressed_message_is_told_plain(tmp_path: Path) -> None:
    """The gateway replays inputs uncompressed, so an endpoint need not support the client's encoding."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            call = it[1].call(UNARY, ("grpc-encoding", "gzip"))
            await call.send_raw(framed(gzip.compress(message(7, 4)), compressed=True), ended=True)
            assert total(await call.over()) == 10
            put_down(it, at)
            assert await asked(it, "grpc", 5) == 15
            reply = it[2][1 - at].grpc.calls[3]
            assert reply.compressed == [False] and reply.value("grpc-encoding") is None

    run(scene())


def test_a_call_that_lost_its_sequence_is_told_why(tmp_path: Path) -> None:
    """The call gets UNAVAILABLE with the error's reason."""

    async def scene() -> None:
        async with fleet(tmp_path, workers=2) as it:
            at = await begun(it)
            put_down(it, at)
            call = await it[1].ask(message(7, 4))
            assert call.value("grpc-status") == str(UNAVAILABLE)
            assert call.value("x-pointsman-reason") == "sequence_lost"
            assert "keeps none without Redis" in str(call.value("grpc-message"))

    run(scene())


@pytest.mark.parametrize("how", ["deadline", "client"])
def test_a_replay_ends_with_the_call_that_waits_for_it(tmp_path: Path, how: str) -> None:
    """When the call's deadline passes or its client leaves, the replay's call is cancelled."""

    async def scene() -> None:
        async with fleet(tmp_path) as it:
            at = await begun(it)
            is_told, is_left = asyncio.Event(), asyncio.Event()

            async def slow(call: Call) -> None:
                is_told.set()
                await call.when(lambda: call.was_reset is not None)
                is_left.set()

            it[2][1 - at].grpc.script = slow
            put_down(it, at)
            call = it[1].call(UNARY, ("grpc-timeout", "80m"))
            await call.send(message(7, 4), ended=True)
            await is_told.wait()
            if how == "client":
                call.reset()
            else:
                assert (await call.over()).value("grpc-status") == "4"
            await is_left.wait()

    run(scene())


@pytest.mark.parametrize("speaks", ["rest", "grpc"])
def test_sequences_on_a_stream_go_on_too(tmp_path: Path, speaks: str) -> None:
    """On a route that replays sequences each message of a ModelStreamInfer call is a request of its own: the stream
    outlives the endpoints of its sequences."""

    async def scene() -> None:
        async with fleet(tmp_path, speaks) as it:
            call = it[1].call(STREAM)
            for index in range(3):
                await call.send(message(7, index + 1, start=not index), message(8, 10, start=not index))
            await call.when(lambda: len(call.messages) == 6)
            assert answers(call.messages) == ["1", "10", "3", "20", "6", "30"]
            at = next(index for index, server in enumerate(it[2]) if 7 in server.sums.totals)
            put_down(it, at)
            await call.send(
                message(7, 4), message(8, 10), message(7, 5, end=True), message(8, 10, end=True), ended=True
            )
            assert answers((await call.over()).messages)[6:] == ["10", "40", "15", "50"]

    run(scene())
