"""REST clients of gRPC-only engines."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from tritonclient.grpc import service_pb2

from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import OPENING, STREAM, UNARY, Call, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_rules, grpc_stage, many
from tests.dataplane.stage import Engine, get, post, run, until

INFER = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": [1]}]}).encode()
GENERATE = json.dumps({"text_input": "hello"}).encode()
STREAM_PATH = "/v2/models/m/generate_stream"


async def metadata(call: Call) -> bool:
    """Answer a ModelMetadata call, with one text in and one text out; return whether the call was one."""
    if not (call.value(":path") or "").endswith("ModelMetadata"):
        return False
    await call.over()
    made = service_pb2.ModelMetadataResponse(name="m", versions=["1"], platform="python")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    made.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    call.open()
    await call.send(made.SerializeToString())
    call.end()
    return True


def text(content: str) -> bytes:
    """A response with one text."""
    made = service_pb2.ModelStreamInferResponse()
    made.infer_response.model_name = "m"
    made.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    made.infer_response.raw_output_contents.append(len(content).to_bytes(4, "little") + content.encode())
    return bytes(made.SerializeToString())


async def answer(call: Call) -> None:
    if await metadata(call):
        return
    await call.over()
    call.open()
    if call.value(":path") == STREAM:
        await call.send(text("one"), text("two"))
    else:
        await call.send(RESULT)
    call.end()


def scene(tmp_path: Path, play: Any, *scripts: Any, options: str = "", **more: Any) -> None:
    """Play with engines of these scripts behind one route."""

    async def whole() -> None:
        engines = [await GrpcEngine(script).start() for script in scripts or (answer,)]
        async with grpc_stage(grpc_rules(*engines, options=options), tmp_path, **more) as it:
            await play(it, *engines)
        for engine in engines:
            await engine.stop()

    run(whole())


def of_inference(engine: GrpcEngine) -> list[Call]:
    return [call for call in engine.calls if call.value(":path") in (UNARY, STREAM)]


def test_an_inference(tmp_path: Path) -> None:
    """The engine gets the client's fields as metadata; the reply's fields name the engine."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await it.ask(post("/v2/models/m/versions/1/infer", INFER, "X-Mine: 1", "X-Request-Id: r"))
        assert reply.status == 200 and json.loads(reply.body)["model_name"] == "m"
        assert reply.headers["x-pointsman-engine"] == "it" and reply.headers["x-request-id"] == "r"
        (received,) = engine.calls
        requested = service_pb2.ModelInferRequest.FromString(received.messages[0])
        assert (requested.model_name, requested.model_version) == ("m", "1")
        assert (received.value("x-mine"), received.value("x-request-id"), received.value("content-length")) == (
            "1",
            "r",
            None,
        )
        assert it.requests() == {200: 1}

    scene(tmp_path, play)


def test_pipelined_requests(tmp_path: Path) -> None:
    """Pipelined requests get their replies in order, whatever their kinds."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        one = post(body=INFER)
        await client.send(one + get("/v2/health/live") + post(STREAM_PATH, GENERATE) + one)
        replies = [await client.reply() for _ in range(4)]
        assert [reply.status for reply in replies] == [200, 200, 200, 200]
        assert json.loads(replies[0].body)["model_name"] == json.loads(replies[3].body)["model_name"] == "m"
        assert replies[2].body.count(b"data: ") == 2

    scene(tmp_path, play)


async def no_grpc(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open([(":status", "503"), ("content-type", "text/html")])
        await call.send_raw(b"<html>overloaded</html>", ended=True)


async def bad_flag(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open()
        await call.send_raw(b"\x07\0\0\0\x01x")
        call.end()


async def bad_gzip(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open([*OPENING, ("grpc-encoding", "gzip")])
        await call.send_raw(b"\x01" + framed(b"no gzip")[1:])
        call.end()


async def unknown_encoding(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open([*OPENING, ("grpc-encoding", "zstd")])
        await call.send_raw(b"\x01" + framed(b"whatever")[1:])
        call.end()


async def no_protobuf(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open()
        await call.send(b"\xff\xff")
        call.end()


async def no_message(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open()
        call.end()


async def lost(call: Call) -> None:
    if not await metadata(call):
        await call.over()
        call.open()
        await call.send_raw(framed(RESULT)[:4])
        call.peer.abort()


BROKEN = [no_grpc, bad_flag, bad_gzip, unknown_encoding, no_protobuf, no_message, lost]


@pytest.mark.parametrize("script", BROKEN, ids=lambda it: it.__name__)
@pytest.mark.parametrize("path, body", [("/v2/models/m/infer", INFER), (STREAM_PATH, GENERATE)])
def test_engines_that_answer_nonsense(tmp_path: Path, script: Any, path: str, body: bytes) -> None:
    """The client gets an error, as a status or, once events have begun, as an event. Other calls on the engine's
    connection are not affected."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        waits = asyncio.create_task(it.ask(post(body=INFER)))
        await until(lambda: of_inference(engine))
        other = engine.calls[0]
        client = await it.client()
        engine.script = script
        reply = await client.ask(post(path, body))
        if path == STREAM_PATH and script is no_message:
            assert (reply.status, reply.body) == (200, b"")
        elif path == STREAM_PATH and reply.status == 200:
            assert b'"error"' in reply.body
        else:
            assert reply.status in (502, 503) and json.loads(reply.body.removeprefix(b"data: "))["error"]
        engine.script = answer
        if script is lost:
            assert (await waits).status == 502
        else:
            assert other.was_reset is None
            other.open()
            await other.send(RESULT)
            other.end()
            assert (await waits).status == 200
        assert (await client.ask(post(body=INFER))).status == 200

    async def silent(call: Call) -> None:
        await call.over()

    scene(tmp_path, play, silent)


@pytest.mark.parametrize("path, body", [("/v2/models/m/infer", INFER), (STREAM_PATH, GENERATE)])
def test_a_client_that_leaves(tmp_path: Path, path: str, body: bytes) -> None:
    """When the client leaves, the engine's call is cancelled at once."""

    async def silent(call: Call) -> None:
        if not await metadata(call):
            await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(post(path, body))
        await until(lambda: of_inference(engine))
        client.close()
        (call,) = of_inference(engine)
        await call.when(lambda: call.was_reset == ErrorCodes.CANCEL)
        assert it.in_flight() == 0

    scene(tmp_path, play, silent)


def test_a_client_that_leaves_while_the_model_is_asked_about(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def silent(call: Call) -> None:
        await go_on.wait()

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(post(STREAM_PATH, GENERATE))
        await until(lambda: engine.calls)
        client.close()
        call = engine.calls[0]
        await call.when(lambda: call.was_reset is not None)
        go_on.set()

    scene(tmp_path, play, silent)


def test_events_come_one_by_one(tmp_path: Path) -> None:
    """Each event is written as soon as its response comes; an error becomes an event, and the end of the stream the
    last chunk."""
    step = asyncio.Semaphore(0)

    async def slow(call: Call) -> None:
        if await metadata(call):
            return
        await call.over()
        call.open()
        for number in range(3):
            await step.acquire()
            await call.send(text(str(number)))
        await step.acquire()
        await call.send(service_pb2.ModelStreamInferResponse(error_message="no more").SerializeToString())
        call.end()

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(post(STREAM_PATH, GENERATE))
        for number in range(3):
            step.release()
            if not number:
                status, headers = await client.head()
                assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            event = await client.chunk()
            assert json.loads(event.removeprefix(b"data: "))["text_output"] == str(number)
        step.release()
        assert json.loads((await client.chunk()).removeprefix(b"data: ")) == {"error": "no more"}
        assert await client.chunk() == b""

    scene(tmp_path, play, slow)


def test_an_http_10_client(tmp_path: Path) -> None:
    """An HTTP/1.0 client gets events without chunks; the stream ends with the connection."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(post(STREAM_PATH, GENERATE).replace(b"HTTP/1.1", b"HTTP/1.0"))
        status, headers = await client.head()
        assert status == 200 and "transfer-encoding" not in headers
        assert (await client.reader.read()).count(b"data: ") == 2

    scene(tmp_path, play)


def test_a_slow_reader_of_events(tmp_path: Path) -> None:
    """A client that reads slowly pauses its engine through the window; nothing is lost when it reads again."""
    events, size = 200, 40_000

    async def long(call: Call) -> None:
        if await metadata(call):
            return
        await call.over()
        call.open()
        for _ in range(events):
            await call.send(text("x" * size))
        call.end()

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await client.send(post(STREAM_PATH, GENERATE))
        await until(lambda: of_inference(engine))
        (call,) = of_inference(engine)
        assert await it.settled(lambda: call.num_sent) < events * size
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        reply = await client.reply()
        assert reply.body.count(b"data: ") == events

    scene(tmp_path, play, long)


def test_generate_that_has_not_one_response(tmp_path: Path) -> None:
    """As in Triton, the error has status 200."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await it.ask(post("/v2/models/m/generate", GENERATE))
        assert reply.status == 200 and b"exactly 1 response" in reply.body

    scene(tmp_path, play)


@pytest.mark.parametrize("path, body", [("/v2/models/m/infer", INFER), (STREAM_PATH, GENERATE)])
@pytest.mark.parametrize("options", ["timeout: 100ms", "timeout: 100ms\n    idle_timeout: 100ms"])
def test_an_engine_that_does_not_answer(tmp_path: Path, path: str, body: bytes, options: str) -> None:
    """The engine's time limits apply to converted requests as they do to REST engines."""

    async def silent(call: Call) -> None:
        if not await metadata(call):
            await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await asyncio.wait_for(it.ask(post(path, body)), 120)
        assert (reply.status, reply.reason) == (504, "deadline")
        assert it.errors() == {"deadline": 1}

    scene(tmp_path, play, silent, options=options)


def test_an_engine_that_falls_silent_between_events(tmp_path: Path) -> None:
    """A silence longer than the engine's `idle_timeout` ends the stream with an error event."""

    async def silent(call: Call) -> None:
        if not await metadata(call):
            await call.over()
            call.open()
            await call.send(text("one"))
            await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await asyncio.wait_for(it.ask(post(STREAM_PATH, GENERATE)), 120)
        assert reply.status == 200
        assert reply.body.count(b"data: ") == 2 and b"sent nothing for" in reply.body
        (call,) = of_inference(engine)
        await call.when(lambda: call.was_reset is not None)

    scene(tmp_path, play, silent, options="idle_timeout: 100ms")


def test_an_engine_whose_reason_nobody_knows(tmp_path: Path) -> None:
    """An unknown reason, as another gateway of another version may send, gives the status of the gRPC error."""

    async def refuses(call: Call) -> None:
        await call.over()
        call.refuse(14, "no", ("x-pointsman-reason", "something_new"))

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await it.ask(post(body=INFER))
        assert (reply.status, json.loads(reply.body)) == (503, {"error": "no"})

    scene(tmp_path, play, refuses)


def test_tries_are_counted_once(tmp_path: Path) -> None:
    """A REST request counts as one request, its retries as retries, and the breaker counts each try once."""

    async def breaks(call: Call) -> None:
        await call.over()
        call.reset(ErrorCodes.INTERNAL_ERROR)

    async def play(it: GrpcStage, bad: GrpcEngine, good: GrpcEngine) -> None:
        for _ in range(4):
            assert (await it.ask(post(body=INFER))).status == 200
        series = it.plane.metrics.by_key.values()
        assert it.requests() == {200: 4}
        assert sum(each.retries for each in series) == len(bad.calls) == 2
        assert [repr(endpoint.breaker) for endpoint in it.endpoints()] == [
            "<CircuitBreaker open, 2 failures>",
            "<CircuitBreaker closed, 0 failures>",
        ]

    options = "balance: round_robin\n    retry: {idempotent: infer}\n    breaker: {failures: 2}"
    scene(tmp_path, play, breaks, answer, options=options)


BODIES = [
    (b"{", 400),
    (b"[]", 400),
    (b"\xff", 400),
    (b'{"inputs": 5}', 400),
    (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "INT32", "data": ["a"]}]}', 400),
]


@pytest.mark.parametrize("body, status", BODIES)
def test_bodies_that_cannot_be_converted(tmp_path: Path, body: bytes, status: int) -> None:
    """A body that cannot be converted is refused before an engine gets it, and is logged."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await it.ask(post(body=body))
        assert reply.status == status and json.loads(reply.body)["error"]
        assert not engine.calls
        assert it.errors() == {"bad_request": 1} and it.requests() == {400: 1}
        (line,) = it.log()
        assert (line["target"], line["status"], line["engine"]) == ("/v2/models/m/infer", 400, "it")

    scene(tmp_path, play)


def test_a_client_that_leaves_in_its_body_stands_in_the_log(tmp_path: Path) -> None:
    """When the client leaves in its body, no engine gets the request; it is counted and logged, as for a REST
    engine."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(post(body=INFER)[:-3])
        await until(
            lambda: any("RestToGrpc" in repr(c._handler) for c in it.plane.connections if hasattr(c, "_handler"))
        )
        client.close()
        await until(lambda: it.errors() == {"client_gone": 1})
        (line,) = it.log()
        assert (line["target"], line["reason"]) == ("/v2/models/m/infer", "client_gone")

    scene(tmp_path, play)


def test_one_line_a_request(tmp_path: Path) -> None:
    """The access log has one line for each request."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        for request in (post(body=INFER), post(STREAM_PATH, GENERATE), get("/v2/models/m"), get("/v2/models/m/ready")):
            await it.ask(request)
        assert [(line["method"], line["target"], line["status"]) for line in it.log()] == [
            ("POST", "/v2/models/m/infer", 200),
            ("POST", STREAM_PATH, 200),
            ("GET", "/v2/models/m", 200),
            ("GET", "/v2/models/m/ready", 200),
        ]

    scene(tmp_path, play)


@pytest.mark.parametrize("pieces", [1, 7])
def test_rules_that_ask_for_the_body(tmp_path: Path, pieces: int) -> None:
    """Rules on the body decide between a REST engine and a gRPC engine, also when the body comes in pieces."""

    async def whole() -> None:
        rest = Engine()
        await rest.start()
        grpc = await GrpcEngine(answer).start()
        routes = (
            "  - {name: wide, match: {input: {datatype: INT32}}, engine: grpc}\n"
            "  - {name: none, match: {model: grpcs}, engine: grpc}\n"
            "  - {name: rest, match: {model: m}, engine: rest}\n"
        )
        async with grpc_stage(many({"rest": rest, "grpc": grpc}, routes), tmp_path) as it:
            client = await it.client()
            for body, engine in ((INFER, "grpc"), (INFER.replace(b"INT32", b"FP32"), "rest")):
                data = post(body=body)
                at = len(data) - len(body)
                await client.send(data[:at])
                for piece in range(pieces):
                    await asyncio.sleep(0)
                    await client.send(body[len(body) * piece // pieces : len(body) * (piece + 1) // pieces])
                reply = await client.reply()
                assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, engine)
            assert (await client.ask(post("/v2/models/other/infer", INFER.replace(b"INT32", b"BOOL")))).status == 404
            packed = gzip.compress(INFER)
            reply = await client.ask(post("/v2/models/m/infer", packed, "Content-Encoding: gzip"))
            assert (reply.status, reply.headers["x-pointsman-engine"]) == (200, "grpc")
            reply = await client.ask(post(STREAM_PATH.replace("/m/", "/grpcs/"), GENERATE))
            assert reply.body.count(b"data: ") == 2
            await client.send(post(body=INFER)[:-2])
            client.close()
            await until(lambda: it.errors() == {"client_gone": 1, "no_route": 1})
        rest.stop()
        await grpc.stop()

    run(whole())


def test_routes_by_protocol(tmp_path: Path) -> None:
    """`match: {protocol: ...}` matches the client's protocol, whatever the engine's."""

    async def whole() -> None:
        rest = Engine()
        await rest.start()
        grpc = await GrpcEngine(answer).start()
        routes = "  - {name: g, match: {protocol: grpc}, engine: grpc}\n  - {name: r, engine: rest}\n"
        async with grpc_stage(many({"rest": rest, "grpc": grpc}, routes), tmp_path) as it:
            assert (await it.ask(post(body=INFER))).headers["x-pointsman-engine"] == "rest"
            client = await it.grpc()
            call = await client.ask(service_pb2.ModelInferRequest(model_name="m").SerializeToString())
            assert call.value("x-pointsman-engine") == "grpc"
        rest.stop()
        await grpc.stop()

    run(whole())


@pytest.mark.parametrize("size", [100, 3_000_000])
def test_heads(tmp_path: Path, size: int) -> None:
    """HEAD is sent as GET, and its reply has no body."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        reply = await client.ask(get("/v2/models/m").replace(b"GET", b"HEAD"), has_body=False)
        assert reply.status == 200 and int(reply.headers["content-length"]) > 10
        big = json.dumps({"inputs": [{"name": "x", "shape": [size], "datatype": "UINT8", "data": [1] * size}]}).encode()
        assert (await client.ask(post(body=big))).status == 200

    scene(tmp_path, play)


@pytest.mark.parametrize("path, body", [("/v2/models/m/infer", INFER), ("/v2/models/m/generate", GENERATE)])
def test_who_asks_is_told_what_became_of_the_time(tmp_path: Path, path: str, body: bytes) -> None:
    """A converted request has the timing too; the field that requests it does not reach the engine."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reply = await it.ask(post(path, body, "x-pointsman-timing: 1"))
        assert reply.status == 200
        assert "decide;dur=" in reply.headers["server-timing"]
        assert "engine;dur=" in reply.headers["server-timing"]
        assert all(call.value("x-pointsman-timing") is None for call in engine.calls)
        assert "server-timing" not in (await it.ask(post(path, body))).headers

    scene(tmp_path, play)
