"""gRPC clients of REST-only engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.protocol.grpc_methods import RPCS
from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import STREAM, GrpcClient
from tests.dataplane.grpc.stage import GrpcStage, answers, grpc_rules, grpc_stage, many, request
from tests.dataplane.grpc.test_stream_call import got
from tests.dataplane.stage import Engine, ReceivedRequest, run, until

INVALID_ARGUMENT, DEADLINE, NOT_FOUND, EXHAUSTED, UNAVAILABLE = 3, 4, 5, 8, 14


def infer(model: str = "m", request_id: str = "") -> bytes:
    """A request that REST can express."""
    made = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    made.inputs.add(name="x", datatype="INT32", shape=[1]).contents.int_contents.append(1)
    return bytes(made.SerializeToString())


def reply(body: Any, status: int = 200) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status} Told\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Model:
    """A script: answers metadata and config requests, and inferences with its `answer`."""

    def __init__(self, *, decoupled: bool = False, answer: Any = None) -> None:
        self.decoupled = decoupled
        self.answer = answer or self.infer

    async def __call__(self, engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        path = received.line.split(" ")[1]
        if path.endswith("/config"):
            writer.write(reply({"name": "m", "model_transaction_policy": {"decoupled": self.decoupled}}))
        elif path.endswith(("/m", "/r")):
            report = {"name": "m", "versions": ["1"], "platform": "p", "inputs": [], "outputs": []}
            report["outputs"] = [{"name": "text_output", "datatype": "BYTES", "shape": [1]}]
            writer.write(reply(report))
        elif "/infer" in path or "/generate" in path:
            await self.answer(engine, received, reader, writer)
        else:
            writer.write(reply({"error": "not here"}, 404))

    async def infer(self, engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        requested = json.loads(
            received.body[: int(received.value("inference-header-content-length") or len(received.body))]
        )
        model = received.line.split("/")[3]
        output = {"name": "y", "datatype": "INT32", "shape": [1], "data": [1]}
        writer.write(reply({"model_name": model, "model_version": "1", "id": requested.get("id"), "outputs": [output]}))


def scene(tmp_path: Path, play: Any, scripts: dict[str, Any], options: str = "", **more: Any) -> None:
    """Play with a client and engines by name, which serve the models whose names begin with it."""

    async def whole() -> None:
        engines = {name: Engine(script) for name, script in scripts.items()}
        for engine in engines.values():
            await engine.start()
        given = {name: (engine, options) for name, engine in engines.items()}
        async with grpc_stage(many(given), tmp_path, **more) as it:
            await play(it, await it.grpc(), *engines.values())
        for engine in engines.values():
            engine.stop()

    run(whole())


def asked(engine: Engine) -> list[ReceivedRequest]:
    return [received for received in engine.received if received.line.startswith("POST")]


# Unary


def test_an_inference(tmp_path: Path) -> None:
    """The engine gets the metadata as header fields, without gRPC's own; the reply's metadata names the engine."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = await client.ask(infer(request_id="7"), metadata=[("x-mine", "1"), ("x-request-id", "r")])
        assert call.status == 0
        assert service_pb2.ModelInferResponse.FromString(call.messages[0]).id == "7"
        assert (call.value("x-pointsman-engine"), call.value("x-request-id")) == ("m", "r")
        (received,) = engine.received
        assert received.line == "POST /v2/models/m/infer HTTP/1.1"
        assert (received.value("x-mine"), received.value("x-request-id"), received.value("grpc-encoding")) == (
            "1",
            "r",
            None,
        )
        assert it.requests() == {200: 1} and [line["status"] for line in it.log()] == [200]

    scene(tmp_path, play, {"m": Model()})


async def closes(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.transport.abort()


async def cuts(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(reply({"model_name": "m"})[:-3])
    await writer.drain()
    writer.close()


async def no_json(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(reply(b"<html>"))


async def wrong_json(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(reply({"outputs": 5}))


async def lying_length(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    body = b'{"outputs":[]}'
    writer.write(b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: abc\r\nContent-Length: 14\r\n\r\n" + body)


async def refuses(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(reply({"error": "no such model"}, 404))


async def busy(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(reply(b"", 503))


FAILURES = [
    (closes, UNAVAILABLE),
    (cuts, UNAVAILABLE),
    (no_json, UNAVAILABLE),
    (wrong_json, UNAVAILABLE),
    (lying_length, UNAVAILABLE),
    (refuses, NOT_FOUND),
    (busy, UNAVAILABLE),
]


@pytest.mark.parametrize("script, status", FAILURES, ids=lambda it: getattr(it, "__name__", ""))
@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/ModelInfer", STREAM])
def test_engines_that_fail(tmp_path: Path, script: Any, status: int, path: str) -> None:
    """A unary call fails with a status; a message of a stream gets an error in its place, and the stream continues."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        if path != STREAM:
            assert (await client.ask(infer())).status == status
            return
        model = engine.script
        call = client.call(STREAM)
        await call.send(infer(request_id="1"))
        (report,) = await got(call, 1)
        assert report.startswith("1: ") and len(report) > 3
        assert isinstance(model, Model)
        model.answer = model.infer
        await call.send(infer(request_id="2"), ended=True)
        assert (await call.over()).status == 0 and answers(call.messages)[1] == "2"

    scene(tmp_path, play, {"m": Model(answer=script)}, "retry: {attempts: 0}")


def test_messages_that_cannot_be_said_in_rest(tmp_path: Path) -> None:
    """A message that cannot be converted to REST is refused before an engine gets it."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        for message in (b"\x0a\x01m\xff\xff", b"\x0a\x01m\x2a\x03\xff\xff\xff"):
            call = await client.ask(message)
            assert call.status == INVALID_ARGUMENT, message
        call = await client.ask(request("m", model_version="first"))
        assert call.status == INVALID_ARGUMENT
        assert not engine.received
        call = client.call(STREAM)
        await call.send(b"\x0a\x01m\x2a\x03\xff\xff\xff", infer("m", "2"), ended=True)
        assert (await call.over()).status == 0
        assert answers(call.messages)[1] == "2"

    scene(tmp_path, play, {"m": Model()})


def test_a_model_without_a_name(tmp_path: Path) -> None:
    """A REST path needs a model name, so the gateway refuses the call."""

    async def whole() -> None:
        engine = Engine(Model())
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            for path in ("/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelReady"):
                assert (await client.ask(infer(""), path=path)).status in (INVALID_ARGUMENT, NOT_FOUND)
            call = client.call(STREAM)
            await call.send(infer(""), ended=True)
            await call.over()
            assert call.status == 0 and answers(call.messages)[0].startswith(": ")
            assert not asked(engine)
        engine.stop()

    run(whole())


def test_deadlines(tmp_path: Path) -> None:
    """A deadline ends the call and the engine's connection."""

    async def silent(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        await reader.read()

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        for path in ("/inference.GRPCInferenceService/ModelInfer", STREAM):
            call = await client.ask(infer(), path=path, metadata=[("grpc-timeout", "150m")])
            assert (call.status, call.value("x-pointsman-reason")) == (DEADLINE, "deadline")
            await until(lambda: engine.num_open == 0 or not any(e.in_flight for e in it.endpoints()))
        assert it.errors() == {"deadline": 2}

    scene(tmp_path, play, {"m": Model(answer=silent)})


@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/ModelInfer", STREAM])
@pytest.mark.parametrize("way", ["reset", "abort"])
def test_a_client_that_leaves(tmp_path: Path, path: str, way: str) -> None:
    """The engine's connection is closed at once, which is how HTTP/1.1 cancels a request."""
    gone = asyncio.Event()

    async def silent(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        gone.set()

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.call(path)
        await call.send(infer())
        if path != STREAM:
            await call.send(ended=True)
        await until(lambda: asked(engine))
        call.reset() if way == "reset" else client.abort()
        await asyncio.wait_for(gone.wait(), 120)
        assert it.errors() == {"client_gone": 1}

    scene(tmp_path, play, {"m": Model(answer=silent)})


def test_a_client_that_leaves_while_the_model_is_asked_about(tmp_path: Path) -> None:
    async def silent(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        await reader.read()

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.call(STREAM)
        await call.send(infer())
        await until(lambda: engine.received)
        call.reset()
        await until(lambda: engine.num_open == 0)

    scene(tmp_path, play, {"m": silent})


# Streams


def test_messages_of_one_model_are_asked_in_turn(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.call(STREAM)
        await call.send(*[infer("m", str(number)) for number in range(10)], ended=True)
        await call.over()
        assert (call.status, answers(call.messages)) == (0, [str(number) for number in range(10)])

    scene(tmp_path, play, {"m": Model()})


def test_an_error_leaves_no_gap(tmp_path: Path) -> None:
    """After a message has failed, the responses to later messages of both models are not held back."""

    async def fails_once(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        if b'"1"' in received.body:
            writer.write(reply({"error": "not this one"}, 400))
        else:
            await Model().infer(engine, received, reader, writer)

    async def play(it: GrpcStage, client: GrpcClient, m: Engine, r: Engine) -> None:
        call = client.call(STREAM)
        await call.send(infer("m", "1"))
        assert await got(call, 1) == ["1: not this one"]
        await call.send(infer("r", "2"), infer("m", "3"), infer("r", "4"))
        assert (await got(call, 4))[1:] == ["2", "3", "4"]
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"m": Model(answer=fails_once), "r": Model()})


def test_a_decoupled_model(tmp_path: Path) -> None:
    """A decoupled model's events become responses one by one, error events too; a broken event stream ends with an
    error."""

    async def events(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        assert "/generate_stream" in received.line
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in (
            b'data: {"text_output": "a"}\n\n',
            b'data: {"text_out',
            b'put": "b"}\n\n',
            b'data: {"error": "e"}\n\n',
        ):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        if b"cut" in received.body:
            writer.transport.abort()
        else:
            writer.write(b"0\r\n\r\n")

    def text(content: str) -> bytes:
        made = service_pb2.ModelInferRequest(model_name="m", id="1")
        made.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(content.encode())
        return bytes(made.SerializeToString())

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.call(STREAM)
        await call.send(text("whole"))
        assert await got(call, 3) == ["1", "1", "1: e"]
        await call.send(text("cut"))
        found = await got(call, 7)
        assert found[3:6] == ["1", "1", "1: e"] and found[6].startswith("1: ")
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"m": Model(decoupled=True, answer=events)})


def test_a_client_that_does_not_read(tmp_path: Path) -> None:
    """When the client does not read, the engine is paused through its socket."""
    event = b'data: {"text_output": "' + b"x" * 40_000 + b'"}\n\n'
    sent = [0]

    async def events(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(500):
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
            sent[0] += 1
        writer.write(b"0\r\n\r\n")

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.call(STREAM)
        call.pause()
        made = service_pb2.ModelInferRequest(model_name="m")
        made.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"x")
        await call.send(made.SerializeToString(), ended=True)
        await until(lambda: len(call.data) >= 65_535)
        assert await it.settled(lambda: sent[0]) < 400
        call.resume()
        await call.over()
        assert (call.status, len(call.messages)) == (0, 500)

    scene(tmp_path, play, {"m": Model(decoupled=True, answer=events)})


# The RPCs of the whole fleet


@pytest.mark.parametrize("rpc", sorted(RPCS))
@pytest.mark.parametrize("message", [b"\xff\xff\xff", b"\x0a\x02\xff\xfe", b"\x0a\x80\x80\x80\x80\x10", b"\x12\x01x"])
def test_malformed_messages_of_every_rpc(tmp_path: Path, rpc: str, message: bytes) -> None:
    """Each call with a malformed message ends with a status, and the connection stays open."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = await client.ask(message, path=RPCS[rpc].path)
        assert call.status is not None and call.was_reset is None
        assert (await client.ask(b"", path=RPCS["ServerLive"].path)).status == 0

    scene(tmp_path, play, {"m": Model()})


def test_more_than_one_message(tmp_path: Path) -> None:
    """A unary call ends at its second message, so that a client cannot fill the memory."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        for path in (
            RPCS["ServerLive"].path,
            "/grpc.health.v1.Health/Check",
            "/inference.GRPCInferenceService/ModelInfer",
        ):
            call = client.call(path)
            await call.send(infer())
            await call.send(infer(), infer())
            assert (await call.over()).status == INVALID_ARGUMENT, path
        call = await client.ask(path=RPCS["ServerLive"].path)
        assert call.status == INVALID_ARGUMENT

    scene(tmp_path, play, {"m": Model()})


def test_a_call_that_is_cut(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        for data in (b"\0", framed(b"abc")[:-1]):
            call = client.call(RPCS["ServerLive"].path)
            await call.send_raw(data, ended=True)
            assert (await call.over()).status == INVALID_ARGUMENT
        call = client.call(RPCS["ServerLive"].path)
        await call.send_raw(b"\0\x7f\xff\xff\xff")
        assert (await call.over()).status == EXHAUSTED

    scene(tmp_path, play, {"m": Model()})
