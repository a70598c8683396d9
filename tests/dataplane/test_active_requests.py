"""Active requests: how each is listed, and how an operator's cancellation ends one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.context.active_requests import cancel_requests, list_requests
from gateway.observability.stats import LiveRequest
from tests.dataplane import generating
from tests.dataplane.generating import ROLE, asked, chunk, token
from tests.dataplane.grpc.peers import STREAM, UNARY, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, grpc_rules, grpc_stage, request
from tests.dataplane.stage import OK, Engine, ReceivedRequest, Stage, rules, run, stage, until

CANCELLED = 1
WORKER = 7


def live(it: Stage, limit: int = 100) -> list[LiveRequest]:
    return list_requests(it.plane.connections, WORKER, asyncio.get_running_loop().time(), limit)


def cancel(it: Stage, id: str) -> int:
    return cancel_requests(it.plane.connections, WORKER, id)


async def hang(
    engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    assert await reader.read() == b""  # until the gateway closes the connection


def post(path: str, body: bytes, *fields: str) -> bytes:
    lines = "".join(f"{field}\r\n" for field in fields)
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\n{lines}content-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


def test_a_rest_request_is_told_and_cancelled(tmp_path: Path) -> None:
    """Cancelling a request gives its client 499 and closes the engine's connection. The client's connection stays open,
    and other requests continue."""

    async def play() -> None:
        engine = Engine(hang)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client, other = await it.client(), await it.client()
            await client.send(post("/v2/models/m/infer?x=secret", b"{}", "x-request-id: r-1"))
            await other.send(post("/v2/models/n/infer", b"{}", "x-request-id: r-2"))
            await until(lambda: [each.stage for each in live(it)] == ["asking", "asking"])
            [first] = live(it, limit=1)
            assert 0 <= first.age < 10
            assert (first.id, first.worker, first.protocol, first.peer) == ("r-1", WORKER, "rest", "127.0.0.1")
            assert (first.method, first.path, first.model) == ("POST", "/v2/models/m/infer", "m")
            assert (first.route, first.arm, first.engine, first.endpoint) == ("all", "", "it", engine.url)
            assert cancel(it, "r-3") == 0
            assert cancel(it, "r-1") == 1
            reply = await client.reply()
            assert (reply.status, reply.reason) == (499, "cancelled")
            assert b"an operator has cancelled this request" in reply.body
            assert [each.id for each in live(it)] == ["r-2"]
            await until(lambda: engine.num_open == 1)
            engine.script = answer
            assert (await client.ask(post("/v2/models/m/infer", b"{}"))).status == 200
            assert it.errors() == {"cancelled": 1}
            assert cancel(it, "r-2") == 1
            await other.reply()
        engine.stop()

    run(play())


async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


def test_a_stream_is_cancelled_in_its_middle(tmp_path: Path) -> None:
    """Cancelling a stream writes an error event in the client's dialect, without a last chunk, and closes the engine's
    connection."""

    async def script(
        engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(generating.STREAM + chunk(ROLE) + chunk(token("one")))
        await reader.read()

    async def play() -> None:
        engine = Engine(script)
        await engine.start()
        async with stage(rules(engine, options="protocol: openai"), tmp_path) as it:
            client = await it.client()
            await client.send(post("/v1/chat/completions", asked("/v1/chat/completions"), "x-request-id: r-1"))
            await client.head()
            await client.chunk()
            [found] = live(it)
            assert (found.stage, found.protocol, found.model) == ("answering", "openai", "m")
            assert cancel(it, "r-1") == 1
            rest = await client.reader.read()
            assert b'"code":"cancelled"' in rest and not rest.endswith(b"0\r\n\r\n")
            await until(lambda: engine.num_open == 0)
        engine.stop()

    run(play())


def test_a_request_without_an_id_has_one_here(tmp_path: Path) -> None:
    """A request whose body is incomplete is listed with a generated id, and can be cancelled by it."""

    async def play() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(rules(engine, options="protocol: openai"), tmp_path) as it:
            client = await it.client()
            await client.send(post("/v1/chat/completions", b"x" * 100)[:-90])
            await until(lambda: bool(live(it)))
            [found] = live(it)
            assert (found.stage, found.route, found.path) == ("reading", "", "/v1/chat/completions")
            assert found.id.startswith("7-")
            assert cancel(it, found.id) == 1
            assert (await client.reply()).status == 499
        engine.stop()

    run(play())


def grpc_scene(tmp_path: Path, play: Any, script: Any) -> None:
    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            await play(it, await it.grpc(), engine)
        await engine.stop()

    run(whole())


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_a_call_is_told_and_cancelled(tmp_path: Path, path: str) -> None:
    """Cancelling a unary call or a stream gives its client the status CANCELLED and ends the engine's stream."""

    async def silent(call: Call) -> None:
        await call.when(lambda: call.is_over or call.was_reset)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call(path, ("x-request-id", "r-1"))
        await call.send(request(), ended=path == UNARY)
        await until(lambda: bool(engine.calls) and [each.stage for each in live(it)] == ["asking"])
        [found] = live(it)
        assert (found.id, found.protocol, found.path) == ("r-1", "grpc", path)
        assert (found.route, found.engine, found.endpoint, found.model) == ("all", "it", engine.url, "m")
        assert cancel(it, "r-1") == 1
        await call.over()
        assert (call.status, call.value("x-pointsman-reason")) == (CANCELLED, "cancelled")
        assert call.value("grpc-message") and "an operator has cancelled" in str(call.value("grpc-message"))
        assert live(it) == []
        await until(lambda: it.in_flight() == 0)

    grpc_scene(tmp_path, play, silent)


def test_a_rest_request_on_http2_and_a_bridged_one(tmp_path: Path) -> None:
    """A REST request on HTTP/2 to a gRPC engine is listed with the client's protocol and path."""

    async def silent(call: Call) -> None:
        await call.when(lambda: call.is_over or call.was_reset)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.request(
            "POST", "/v2/models/m/infer", ("x-request-id", "r-1"), ("content-type", "application/json")
        )
        body = b'{"inputs":[{"name":"a","shape":[1],"datatype":"INT32","data":[1]}]}'
        await call.send_raw(body, ended=True)
        await until(lambda: bool(engine.calls) and [each.stage for each in live(it)] == ["asking"])
        [found] = live(it)
        assert (found.id, found.protocol, found.path) == ("r-1", "rest", "/v2/models/m/infer")
        assert (found.engine, found.endpoint, found.model) == ("it", engine.url, "m")
        assert cancel(it, "r-1") == 1
        await call.over()
        assert call.value(":status") == "499"
        await until(lambda: it.in_flight() == 0)

    grpc_scene(tmp_path, play, silent)


def test_a_stream_of_events_on_http2_is_cancelled(tmp_path: Path) -> None:
    """The error event comes before the stream is reset."""

    async def script(
        engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        writer.write(generating.STREAM + chunk(ROLE) + chunk(token("one")))
        await reader.read()

    async def play() -> None:
        engine = Engine(script)
        await engine.start()
        async with grpc_stage(rules(engine, options="protocol: openai"), tmp_path) as it:
            client = await it.grpc()
            fields = ("x-request-id", "r-1"), ("content-type", "application/json")
            call = client.request("POST", "/v1/chat/completions", *fields)
            await call.send_raw(asked("/v1/chat/completions"), ended=True)
            await call.when(lambda: b"one" in call.data)
            assert cancel(it, "r-1") == 1
            await call.when(lambda: call.was_reset is not None)
            assert b'"code":"cancelled"' in call.data
            await until(lambda: engine.num_open == 0)
        engine.stop()

    run(play())


LIMITS = "limits: [{name: one, concurrency: 1, max_wait: 30s}]\n"


def test_a_request_that_waits_for_its_turn_is_cancelled(tmp_path: Path) -> None:
    """Cancelling a request that waits for a limit's slot ends it before it reaches an engine; the request that has the
    slot continues."""

    async def play() -> None:
        engine = Engine(hang)
        await engine.start()
        async with stage(rules(engine) + LIMITS, tmp_path) as it:
            first, second = await it.client(), await it.client()
            await first.send(post("/v2/models/m/infer", b"{}", "x-request-id: r-1"))
            await until(lambda: [each.stage for each in live(it)] == ["asking"])
            await second.send(post("/v2/models/m/infer", b"{}", "x-request-id: r-2"))
            await until(lambda: sorted(each.stage for each in live(it)) == ["asking", "limited"])
            assert cancel(it, "r-2") == 1
            assert (await second.reply()).status == 499
            assert len(engine.received) == 1
            assert cancel(it, "r-1") == 1
            assert (await first.reply()).status == 499
        engine.stop()

    run(play())


def test_a_call_that_waits_for_its_turn_is_cancelled(tmp_path: Path) -> None:
    """Cancelling a call that waits for a limit's slot ends it before it reaches an engine."""

    async def silent(call: Call) -> None:
        await call.when(lambda: call.is_over or call.was_reset)

    async def whole() -> None:
        engine = await GrpcEngine(silent).start()
        async with grpc_stage(grpc_rules(engine) + LIMITS, tmp_path) as it:
            client = await it.grpc()
            first = client.call(UNARY, ("x-request-id", "r-1"))
            await first.send(request(), ended=True)
            await until(lambda: [each.stage for each in live(it)] == ["asking"])
            second = client.call(UNARY, ("x-request-id", "r-2"))
            await second.send(request(), ended=True)
            await until(lambda: sorted(each.stage for each in live(it)) == ["asking", "limited"])
            assert [cancel(it, "r-2"), cancel(it, "r-1")] == [1, 1]
            for call in (first, second):
                await call.over()
                assert call.status == CANCELLED
            assert len(engine.calls) == 1
        await engine.stop()

    run(whole())
