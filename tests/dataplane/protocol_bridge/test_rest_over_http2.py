"""REST on HTTP/2: the same replies as on HTTP/1.1, each on its own stream."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from h2.errors import ErrorCodes

from tests.dataplane.grpc.peers import STREAM, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, grpc_rules, grpc_stage
from tests.dataplane.protocol_bridge.test_rest_to_grpc import GENERATE, INFER, STREAM_PATH, answer, metadata, text
from tests.dataplane.stage import Engine, ReceivedRequest, run, until


def scene(tmp_path: Path, play: Any, script: Any = None, **more: Any) -> None:
    """Play with an engine that speaks REST or, if `script` is a gRPC engine, gRPC only."""

    async def whole() -> None:
        engine: Any = script if isinstance(script, GrpcEngine) else Engine(*([script] if script else []))
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path, **more) as it:
            await play(it, await it.grpc(), engine)
        stopped = engine.stop()
        if stopped is not None:
            await stopped

    run(whole())


async def ask(client: GrpcClient, method: str, path: str, body: bytes = b"", *fields: tuple[str, str]) -> Call:
    call = client.request(method, path, *fields, ended=not body)
    if body:
        await call.send_raw(body, ended=True)
    return await call.over()


def status(call: Call) -> int:
    return int(call.value(":status") or 0)


def test_an_inference(tmp_path: Path) -> None:
    """The engine gets an HTTP/1.1 request; the reply on HTTP/2 has no `connection` field."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = await ask(
            client, "POST", "/v2/models/m/infer", b"{}", ("x-mine", "1"), ("content-type", "application/json")
        )
        assert (status(call), bytes(call.data)) == (200, b'{"ok":true}')
        assert call.value("connection") is None and call.value("x-pointsman-engine") == "it"
        (received,) = engine.received
        assert received.line == "POST /v2/models/m/infer HTTP/1.1" and received.body == b"{}"
        assert received.value("x-mine") == "1" and received.value("content-length") == "2"

    scene(tmp_path, play)


def test_many_at_a_time(tmp_path: Path) -> None:
    """A request does not wait for earlier ones."""
    go_on = asyncio.Event()

    async def slow(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        if b"wait" in received.body:
            await go_on.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(received.body), received.body))

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        first = client.request("POST", "/v2/models/m/infer")
        await first.send_raw(b"wait", ended=True)
        calls = await asyncio.gather(*[ask(client, "POST", "/v2/models/m/infer", b"%d" % n) for n in range(1, 50)])
        assert [bytes(call.data) for call in calls] == [b"%d" % n for n in range(1, 50)]
        assert not first.is_over
        go_on.set()
        assert bytes((await first.over()).data) == b"wait"

    scene(tmp_path, play, slow)


ANSWERS = [
    ("GET", "/v2/health/live", 200),
    ("GET", "/v2", 200),
    ("GET", "/v3", 404),
    ("DELETE", "/v2", 405),
    ("GET", "/v2/models/m", 200),
    ("OPTIONS", "*", 404),
]


@pytest.mark.parametrize("method, path, reply", ANSWERS)
@pytest.mark.parametrize("kind", ["rest", "grpc"])
def test_answers(tmp_path: Path, method: str, path: str, reply: int, kind: str) -> None:
    """Every handler answers HEAD like GET without the body: it sends no DATA."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Any) -> None:
        call = await ask(client, method, path)
        assert status(call) == reply and call.was_reset is None
        if method == "GET":
            head = await ask(client, "HEAD", path)
            assert (status(head), bytes(head.data)) == (reply, b"")
            assert head.value("content-length") == call.value("content-length")
            assert head.was_reset is None

    scene(tmp_path, play, GrpcEngine(answer) if kind == "grpc" else None)


def test_events_come_one_by_one(tmp_path: Path) -> None:
    step = asyncio.Semaphore(0)

    async def slow(call: Call) -> None:
        if await metadata(call):
            return
        await call.over()
        call.open()
        for number in range(3):
            await step.acquire()
            await call.send(text(str(number)))
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.request("POST", STREAM_PATH)
        await call.send_raw(GENERATE, ended=True)
        for number in range(3):
            step.release()
            await call.when(lambda number=number: call.data.count(b"data: ") == number + 1)
        await call.over()
        assert call.ended and call.value("content-type") == "text/event-stream; charset=utf-8"

    scene(tmp_path, play, GrpcEngine(slow))


@pytest.mark.parametrize("reply", [True, False])
def test_a_body_that_is_too_long(tmp_path: Path, reply: bool) -> None:
    """A body that is too long gets 413, with or without a content-length; the rest of it is not read."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        fields = [("content-length", "200000")] if reply else []
        call = client.request("POST", "/v2/models/m/infer", *fields)
        sending = asyncio.create_task(call.send_raw(bytes(200_000), ended=True))
        await call.when(lambda: call.fields)
        assert status(call) == 413
        await call.over()
        await sending
        assert (await ask(client, "GET", "/v2/health/live")).ended
        assert it.errors() == {"body_too_large": 1}

    scene(tmp_path, play, limits={"max_body_bytes": 100_000})


def test_a_body_in_pieces(tmp_path: Path) -> None:
    """A body in pieces and without a content-length reaches the engine whole."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        body = bytes(range(256)) * 8000
        call = client.request("POST", "/v2/models/m/infer")
        for at in range(0, len(body), 100_000):
            await call.send_raw(body[at : at + 100_000], ended=at + 100_000 >= len(body))
        assert status(await call.over()) == 200
        assert engine.received[0].body == body

    scene(tmp_path, play)


def test_an_engine_that_does_not_read(tmp_path: Path) -> None:
    """While the engine does not read, the client's window stays closed, so that memory does not hold the whole body."""
    go_on = asyncio.Event()

    async def slow(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        await go_on.wait()
        await reader.readexactly(int(received.value("content-length") or 0))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async def whole() -> None:
        engine = Engine(slow, reads_bodies=False)
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            call = client.request("POST", "/v2/models/m/infer", ("content-length", "30000000"))
            sending = asyncio.create_task(call.send_raw(bytes(30_000_000), ended=True))
            assert await it.settled(lambda: call.num_sent) < 20_000_000
            go_on.set()
            assert status(await call.over()) == 200
            await sending
        engine.stop()

    run(whole())


def test_an_engine_that_answers_early(tmp_path: Path) -> None:
    """The reply comes before the body is complete; then the client's stream is reset."""

    async def early(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
        await writer.drain()
        writer.close()

    async def whole() -> None:
        engine = Engine(early, reads_bodies=False)
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            call = client.request("POST", "/v2/models/m/infer")
            await call.send_raw(bytes(1000))
            await call.when(lambda: call.ended)
            assert (status(call), bytes(call.data)) == (403, b"no")
            await call.when(lambda: call.was_reset == ErrorCodes.NO_ERROR)
        engine.stop()

    run(whole())


async def refuses(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")


def test_the_end_of_a_body_comes_late(tmp_path: Path) -> None:
    """A body whose length is reached, or which the reply does not need, may end after the reply: the stream is not
    reset under a client that still sends."""

    async def whole() -> None:
        engine = Engine(refuses, reads_bodies=False)
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path, limits={"retry_body_bytes": 1}) as it:
            client = await it.grpc()
            for sent, rest in [(b"{}", b""), (b"{", b"}")]:
                call = client.request("POST", "/v2/models/m/infer", ("content-length", "2"))
                await call.send_raw(sent)
                await call.when(lambda call=call: call.ended)
                assert (status(call), call.was_reset) == (403, None)
                await call.send_raw(rest, ended=True)
                assert status(await ask(client, "GET", "/v2")) == 200
                assert call.was_reset is None
            assert not next(iter(it.plane.connections)).http2.streams  # type: ignore[attr-defined]
        engine.stop()

    run(whole())


def test_the_end_of_a_body_does_not_come(tmp_path: Path) -> None:
    """The wait for it is bounded: by `body_timeout`, and by the window, beyond which the client would wait too."""

    async def whole() -> None:
        engine = Engine(refuses, reads_bodies=False)
        await engine.start()
        limits = {"body_timeout": 0.5, "window_bytes": 65_535}
        async with grpc_stage(grpc_rules(engine), tmp_path, limits=limits, sweep_seconds=0.1) as it:
            client = await it.grpc()
            for length in ("2", "60000000"):
                call = client.request("POST", "/v2/models/m/infer", ("content-length", length))
                await call.send_raw(b"{}")
                await call.when(lambda call=call: call.was_reset == ErrorCodes.NO_ERROR)
                assert (call.ended, status(call)) == (True, 403)
        engine.stop()

    run(whole())


def test_httpx(tmp_path: Path) -> None:
    """httpx sends an empty frame after the body; none of many requests at once fails."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        async with httpx.AsyncClient(
            http1=False, http2=True, base_url=f"http://127.0.0.1:{it.port}", timeout=120
        ) as web:
            for path, reply in [("/v2/models/m/infer", 200), ("/v3", 404)]:
                replies = await asyncio.gather(*[web.post(path, content=b"{}") for _ in range(150)])
                assert {each.status_code for each in replies} == {reply}
                assert {each.http_version for each in replies} == {"HTTP/2"}

    scene(tmp_path, play)


def test_a_slow_client_of_an_early_answer(tmp_path: Path) -> None:
    """Once the client has read the reply, the rest of its request is not needed: the stream ends."""
    size = 100_000

    async def early(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

    async def whole() -> None:
        engine = Engine(early, reads_bodies=False)
        await engine.start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            call = client.request("POST", "/v2/models/m/infer")
            call.pause()
            await call.send_raw(b"{")
            await until(lambda: len(call.data) >= 65_535 and it.in_flight() == 0)
            call.resume()
            await call.when(lambda: call.ended)
            assert len(call.data) == size
            await call.when(lambda: call.was_reset == ErrorCodes.NO_ERROR)
            assert not next(iter(it.plane.connections)).http2.streams  # type: ignore[attr-defined]
        engine.stop()

    run(whole())


def test_a_client_that_leaves(tmp_path: Path) -> None:
    gone = asyncio.Event()

    async def silent(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        gone.set()

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.request("POST", "/v2/models/m/infer")
        await call.send_raw(b"{}", ended=True)
        await until(lambda: engine.received)
        call.reset()
        await asyncio.wait_for(gone.wait(), 120)
        assert it.errors() == {"client_gone": 1}

    scene(tmp_path, play, silent)


def test_a_client_that_does_not_read(tmp_path: Path) -> None:
    """A client that does not read pauses its engine; other streams on the same connection continue."""
    size, sent = 30_000_000, [0]

    async def long(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        if b"long" not in received.body:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size // 100_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent[0] += 100_000

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.request("POST", "/v2/models/m/infer")
        call.pause()
        await call.send_raw(b"long", ended=True)
        await until(lambda: len(call.data) >= 65_535)
        assert await it.settled(lambda: sent[0]) < size
        assert status(await ask(client, "POST", "/v2/models/m/infer", b"{}")) == 200
        call.resume()
        assert len((await call.over()).data) == size

    scene(tmp_path, play, long)


def test_an_engine_that_breaks_its_reply_off(tmp_path: Path) -> None:
    """The stream is reset, so that the client can detect the incomplete reply."""

    async def cuts(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc")
        await writer.drain()
        writer.close()

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = await ask(client, "POST", "/v2/models/m/infer", b"{}")
        assert (status(call), call.was_reset) == (200, ErrorCodes.INTERNAL_ERROR)

    scene(tmp_path, play, cuts)


def test_a_client_that_waits_for_leave(tmp_path: Path) -> None:
    """A client that sends `expect: 100-continue` gets the interim reply."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        call = client.request("POST", "/v2/models/m/infer", ("expect", "100-continue"))
        await call.when(lambda: call.interim)
        await call.send_raw(b"{}", ended=True)
        assert status(await call.over()) == 200

    scene(tmp_path, play)


def test_a_client_that_falls_silent_in_its_body(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: Any) -> None:
        call = client.request("POST", "/v2/models/m/infer")
        await call.send_raw(b"{")
        await call.over()
        assert status(call) == 408

    scene(tmp_path, play, GrpcEngine(answer), limits={"body_timeout": 0.2})


def test_generate_stream_over_grpc(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await ask(client, "POST", STREAM_PATH, GENERATE)
        assert status(call) == 200 and call.data.count(b"data: ") == 2
        assert [received.value(":path") for received in engine.calls][-1] == STREAM
        call = await ask(client, "POST", "/v2/models/m/infer", INFER)
        assert json.loads(bytes(call.data))["model_name"] == "m"

    scene(tmp_path, play, GrpcEngine(answer))


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(tmp_path: Path) -> None:
    """curl, an independent HTTP/2 client, gets replies."""

    async def play(it: GrpcStage, client: GrpcClient, engine: Engine) -> None:
        def curl(*arguments: str) -> str:
            url = f"http://127.0.0.1:{it.port}/v2/models/m/infer"
            command = ["curl", "-sS", "--noproxy", "*", "--http2-prior-knowledge", *arguments, url]
            return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

        assert await asyncio.to_thread(curl, "-d", "{}", "-w", " %{http_version} %{http_code}") == '{"ok":true} 2 200'
        assert "405" in await asyncio.to_thread(curl, "-I")

    scene(tmp_path, play)
