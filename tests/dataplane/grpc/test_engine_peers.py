"""Engines that differ: other protocols, small windows, TLS, unexpected frames."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2.settings import SettingCodes

from gateway.worker.process import listener_tls
from tests.dataplane.grpc.peers import STREAM, Call, GrpcClient, GrpcEngine, echo, echoed
from tests.dataplane.grpc.stage import GrpcStage, grpc_rules, grpc_stage, many, request
from tests.dataplane.grpc.test_unary_call import answer
from tests.dataplane.stage import Engine, post, run, until
from tests.dataplane.test_tls import files

UNAVAILABLE = 14
SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def scene(tmp_path: Path, play: Any, engine: GrpcEngine, *, options: str = "", **more: Any) -> None:
    async def whole() -> None:
        await engine.start()
        async with grpc_stage(grpc_rules(engine, options=options), tmp_path, **more) as it:
            await play(it, await it.grpc(), engine)
        await engine.stop()

    run(whole())


WINDOWS = [
    {SettingCodes.INITIAL_WINDOW_SIZE: 1},
    {SettingCodes.INITIAL_WINDOW_SIZE: 1000},
    {SettingCodes.MAX_FRAME_SIZE: 1 << 20},
]


@pytest.mark.parametrize("settings", WINDOWS)
@pytest.mark.parametrize("path", ["/inference.GRPCInferenceService/ModelInfer", STREAM])
def test_windows_of_any_size(tmp_path: Path, settings: Any, path: str) -> None:
    """All of a message arrives with windows and frames of any size, on the engine's side and on the client's."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        small = await it.grpc(settings=settings)
        sent = request(raw_input_contents=[bytes(range(256)) * 8])
        for peer in (client, small):
            call = await peer.ask(sent, path=path)
            assert (call.status, call.messages) == (0, [echoed(sent) if path == STREAM else sent])
        assert [call.messages for call in engine.calls] == [[sent], [sent]]

    scene(tmp_path, play, GrpcEngine(echo, settings=settings))


def test_a_window_that_shrinks(tmp_path: Path) -> None:
    """When an engine shrinks its window, the data waits and none is lost."""

    async def shrinks(call: Call) -> None:
        call.pause()
        # h2 takes the first acknowledgement for that of all settings sent by then.
        await call.when(lambda: call.peer.num_acknowledged)
        call.peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
        call.peer.flush()
        await call.when(lambda: len(call.data) > 60_000)
        call.peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 200_000})
        call.peer.flush()
        call.resume()
        await answer(call)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        sent = request(raw_input_contents=[bytes(1_000_000)])
        assert (await client.ask(sent)).status == 0
        assert engine.calls[0].messages == [sent]

    scene(tmp_path, play, GrpcEngine(shrinks))


OTHERS = {
    "HTTP/1.1": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    "nonsense": b"\xff" * 100,
    "nothing": b"",
    "an endless frame": SETTINGS + b"\xff\xff\xff\0\0\0\0\0\1",
    "a push": SETTINGS + b"\0\0\4\5\4\0\0\0\1\0\0\0\2",
    "half a block": SETTINGS + b"\0\0\1\1\0\0\0\0\1\x88" + b"\0\0\0\0\1\0\0\0\1",
    "bad fields": SETTINGS + b"\0\0\1\1\4\0\0\0\1\xff",
    "no status": SETTINGS + b"\0\0\1\1\4\0\0\0\1\x82",
    "a frame of nobody's stream": SETTINGS + b"\0\0\1\0\0\0\0\0\7x",
}


@pytest.mark.parametrize("reply", OTHERS.values(), ids=OTHERS)
def test_what_is_no_http2(tmp_path: Path, reply: bytes) -> None:
    """The call fails with an error that names the endpoint, the endpoint's breaker counts the failure, and the other
    engine still serves."""

    async def whole() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1000)
            writer.write(reply)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"grpc://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        good = await GrpcEngine(answer).start()
        routes = "  - {name: bad, match: {model: x}, engine: bad}\n  - {name: good, engine: good}\n"
        text = many({"bad": (url, "retry: {attempts: 0}"), "good": good}, routes)
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            call = await client.ask(request("x"))
            assert call.status == UNAVAILABLE and url[7:] in (call.value("grpc-message") or "")
            call = await client.ask(request("x"), path=STREAM)
            assert call.status == UNAVAILABLE or call.messages
            assert (await client.ask(request())).status == 0
            bad = next(endpoint for endpoint in it.endpoints() if endpoint.url == url)
            assert not bad.breaker.is_spotless
        server.close()
        await good.stop()

    run(whole())


def test_an_engine_that_pings_and_changes_its_mind(tmp_path: Path) -> None:
    """During calls the gateway answers PING, acknowledges SETTINGS and ignores unknown frames."""

    async def chatty(call: Call) -> None:
        peer = call.peer
        for number in range(20):
            peer.h2.ping(number.to_bytes(8))
            peer.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 100 * number})
            peer.flush()
            peer.writer.write(b"\0\0\3\x77\0\0\0\0\0abc")
        await call.over()
        call.open()
        await call.send(*call.messages)
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        for number in range(10):
            call = await client.ask(request("m", str(number)), metadata=[("x-number", str(number))])
            assert (call.status, call.messages) == (0, [request("m", str(number))])
        assert [call.value("x-number") for call in engine.calls] == [str(number) for number in range(10)]
        assert engine.peers[0].num_pings >= 180

    scene(tmp_path, play, GrpcEngine(chatty))


def test_an_engine_under_tls(tmp_path: Path) -> None:
    """A `grpcs` endpoint is called under TLS; without a trusted certificate the call fails and the engine gets
    nothing."""
    authority = trustme.CA()
    context = listener_tls(files(tmp_path, authority))
    trusted = f"tls: {{ca: {tmp_path / 'ca.pem'}}}"

    async def whole() -> None:
        engine = await GrpcEngine(echo).start(ssl=context)
        sent = request(raw_input_contents=[bytes(1_000_000)])
        url = f"grpcs://{engine.address}"
        async with grpc_stage(many({"m": (url, trusted)}), tmp_path) as it:
            assert (await (await it.grpc()).ask(sent)).messages == [sent]
            assert engine.calls[0].value(":scheme") == "https"
        async with grpc_stage(many({"m": (url, "retry: {attempts: 0}")}), tmp_path) as it:
            call = await (await it.grpc()).ask(sent)
            assert (call.status, call.value("x-pointsman-reason")) == (UNAVAILABLE, "upstream_connect")
            assert "TLS handshake failed" in (call.value("grpc-message") or "")
        assert len(engine.calls) == 1
        await engine.stop()

    run(whole())


def test_an_engine_that_leaves_now_and_then(tmp_path: Path) -> None:
    """An engine that limits the age of its connections sends GOAWAY in the middle of calls: no call is lost."""

    last_of: dict[object, int] = {}

    async def ages(call: Call) -> None:
        if call.id > last_of.get(call.peer, 1 << 31):
            return  # GOAWAY promised that
        if call.id == 13:
            call.peer.leave(last_id=call.id)
            last_of[call.peer] = call.id
        await answer(call)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        for _ in range(5):
            calls = await asyncio.gather(*[client.ask(request()) for _ in range(30)])
            assert {call.status for call in calls} == {0}
        assert len(engine.peers) > 5
        await until(lambda: all(peer.is_lost for peer in last_of))

    options = "retry: {attempts: 10, budget_floor: 1000}"
    scene(tmp_path, play, GrpcEngine(ages), options=options)


def test_one_engine_of_both_protocols(tmp_path: Path) -> None:
    """REST requests go to the engine's REST port and gRPC calls to its gRPC port; both count on its one endpoint."""

    async def whole() -> None:
        rest, grpc = Engine(), await GrpcEngine(answer).start()
        await rest.start()
        text = (
            f"version: 1\nengines:\n  it:\n    endpoints: [{{url: '{rest.url}', grpc: '{grpc.address}'}}]\n"
            "routes:\n  - {name: all, engine: it}\n"
        )
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            assert (await client.ask(request())).status == 0
            assert (await it.ask(post())).status == 200
            assert (len(rest.received), len(grpc.calls)) == (1, 1)
            assert it.requests() == {200: 2} and len(it.endpoints()) == 1
        rest.stop()
        await grpc.stop()

    run(whole())


def test_a_long_message_into_a_wide_window(tmp_path: Path) -> None:
    """The socket's buffer may hold as much as the engine's window allows; the connection stays open, since it carries
    other calls too."""
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        call.peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await go_on.wait()
        call.peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        await echo(call)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        first = request("m", "1")
        long = request("m", "2", raw_input_contents=[bytes(30_000_000)])
        call = client.call(STREAM)
        await call.send(first)
        await until(lambda: engine.calls and engine.calls[0].peer.h2.remote_settings)
        sending = asyncio.create_task(call.send(long, ended=True))
        (connection,) = it.endpoints()[0].streams._connections
        await until(lambda: connection.http2.is_blocked or connection.is_closing)
        go_on.set()
        await sending
        await call.over()
        assert (call.status, call.messages) == (0, [echoed(first), echoed(long)])

    scene(tmp_path, play, GrpcEngine(slow, settings={SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30}))
