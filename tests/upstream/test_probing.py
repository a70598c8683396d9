"""One probe of an endpoint: what counts as ready, as not ready, and as gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2.errors import ErrorCodes

from gateway.config.specs import EndpointSpec, EngineSpec, HealthSpec
from gateway.protocol.condition import Condition
from gateway.upstream.probing import asker_for
from tests.dataplane.grpc.peers import Call, GrpcEngine
from tests.dataplane.stage import Engine, Heard, run, until


def spec(url: str, **more: Any) -> EngineSpec:
    return EngineSpec("it", (EndpointSpec(url),), health=HealthSpec(timeout=0.2), api_key="secret", **more)


def says(*messages: bytes, status: int = 0) -> Any:
    async def script(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(*messages)
        call.end([("grpc-status", str(status))])

    return script


async def silent(call: Call) -> None:
    await call.when(lambda: call.is_over)


async def breaks_off(call: Call) -> None:
    call.reset(ErrorCodes.INTERNAL_ERROR)


async def lost(call: Call) -> None:
    call.peer.abort()


BY_GRPC = [
    (says(b"\x08\x01"), Condition.READY),
    (says(b"\x08\x00"), Condition.UNREADY),
    (says(b""), Condition.UNREADY),
    (says(b"\x10\x01\x08\x01"), Condition.READY),
    (says(status=14), Condition.UNREADY),
    (says(status=12), Condition.UNREADY),
    (says(b"\xff\xff"), Condition.DOWN),
    (says(), Condition.UNREADY),
    (silent, Condition.DOWN),
    (breaks_off, Condition.DOWN),
    (lost, Condition.DOWN),
]


@pytest.mark.parametrize("script, found", BY_GRPC)
def test_by_grpc(script: Any, found: Condition) -> None:
    """An endpoint that speaks gRPC alone is asked by ServerReady, again and again on one connection."""

    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        asker = asker_for(spec(engine.url), engine.url)
        assert [await asker.ask() for _ in range(2)] == [found, found]
        assert engine.calls[0].value(":path") == "/inference.GRPCInferenceService/ServerReady"
        assert engine.calls[0].value("authorization") == "Bearer secret"
        assert len(engine.peers) == (2 if script is lost else 1)
        await asker.close()
        await until(lambda: all(peer.is_lost for peer in engine.peers))
        await engine.stop()

    run(whole())


def test_by_grpc_nobody_there() -> None:
    async def whole() -> None:
        asker = asker_for(spec("grpc://127.0.0.1:1"), "grpc://127.0.0.1:1")
        assert await asker.ask() is Condition.DOWN
        await asker.close()

    run(whole())


def test_an_endpoint_that_comes_back() -> None:
    """Each probe tells of its own moment."""

    async def whole() -> None:
        engine = await GrpcEngine(says(b"\x08\x01")).start()
        asker = asker_for(spec(engine.url), engine.url)
        assert await asker.ask() is Condition.READY
        port = int(engine.address.rpartition(":")[2])
        await engine.stop()
        assert await asker.ask() is Condition.DOWN
        again = await GrpcEngine(says(b"\x08\x01")).start(port)
        assert await asker.ask() is Condition.READY
        await asker.close()
        await again.stop()

    run(whole())


def test_closing_in_the_middle() -> None:
    """A probe that is under way when the rules change leaves nothing behind."""

    async def whole() -> None:
        engine = await GrpcEngine(silent).start()
        asker = asker_for(spec(engine.url), engine.url)
        probe = asyncio.create_task(asker.ask())
        await until(lambda: engine.calls)
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        await asker.close()
        await until(lambda: engine.peers[0].is_lost)
        await engine.stop()

    run(whole())


async def closes(engine: Engine, heard: Heard, reader: Any, writer: Any) -> None:
    writer.close()


async def never(engine: Engine, heard: Heard, reader: Any, writer: Any) -> None:
    await reader.read()


def replies(status: int) -> Any:
    async def script(engine: Engine, heard: Heard, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 %d Told\r\nContent-Length: 0\r\n\r\n" % status)

    return script


BY_REST = [
    (replies(200), Condition.READY),
    (replies(400), Condition.UNREADY),
    (replies(503), Condition.UNREADY),
    (closes, Condition.DOWN),
    (never, Condition.DOWN),
]


@pytest.mark.parametrize("script, found", BY_REST)
def test_by_rest(script: Any, found: Condition) -> None:
    """Where there is REST it is asked, though there is gRPC too."""

    async def whole() -> None:
        engine = Engine(script)
        await engine.start()
        asker = asker_for(spec(engine.url), engine.url)
        assert await asker.ask() is found
        assert engine.heard[0].line == "GET /v2/health/ready HTTP/1.1"
        assert engine.heard[0].value("authorization") == "Bearer secret"
        await asker.close()
        engine.stop()

    run(whole())
