"""HTTP/2 connections of clients: how they open, how many calls they may hold, how they end."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from gateway.wire.grpc import framed
from gateway.worker.process import listener_tls
from tests.dataplane.grpc.peers import UNARY, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_rules, grpc_stage, request
from tests.dataplane.grpc.test_unary_call import answer
from tests.dataplane.stage import get, load, run, until
from tests.dataplane.test_tls import files

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def scene(tmp_path: Path, play: Any, script: Any = answer, *, options: str = "", **more: Any) -> None:
    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        async with grpc_stage(grpc_rules(engine, options=options), tmp_path, **more) as it:
            await play(it, engine)
        await engine.stop()

    run(whole())


async def waits(call: Call) -> None:
    """Answers nothing until it is cancelled."""
    await call.when(lambda: call.was_reset is not None or call.peer.is_lost)


# How they open


def opening() -> bytes:
    """A whole call as bytes: the preface, SETTINGS, HEADERS with literals, DATA with the end of the stream."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", UNARY), (":authority", "gateway")]
    fields += [("te", "trailers"), ("content-type", "application/grpc")]
    block = b"".join(
        b"\0" + bytes((len(name),)) + name.encode() + bytes((len(value),)) + value.encode() for name, value in fields
    )
    data = framed(request())
    return b"".join(
        (
            PREFACE,
            EMPTY_SETTINGS,
            len(block).to_bytes(3) + b"\1\4\0\0\0\1" + block,
            len(data).to_bytes(3) + b"\0\1\0\0\0\1" + data,
        )
    )


def test_bytes_cut_anywhere(tmp_path: Path) -> None:
    """A call succeeds when its bytes come in two pieces, cut at any place, the preface included."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        whole = opening()
        for at in range(1, len(whole)):
            client = await it.client()
            await client.send(whole[:at])
            await asyncio.sleep(0)
            await client.send(whole[at:])
            found = b""
            while RESULT not in found:
                piece = await asyncio.wait_for(client.reader.read(65536), 120)
                assert piece, (at, found)
                found += piece
            client.close()
        assert len(engine.calls) == len(whole) - 1

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "first", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"PRI / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0" * 100]
)
def test_garbage(tmp_path: Path, first: bytes) -> None:
    """Bytes that are neither HTTP/2 nor HTTP/1.1 get an HTTP/1.1 error, and the connection is closed."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.client()
        await client.send(first + b"\r\n\r\n")
        assert (await client.reply()).status == 400
        assert await client.at_end()

    scene(tmp_path, play)


def test_half_a_preface(tmp_path: Path) -> None:
    """A client that stops in the middle of the preface gets the time limit of a head. A POST, which begins with the
    same letter, is served."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        slow = await it.client()
        await slow.send(PREFACE[:10])
        other = await it.client()
        await other.send(b"P")
        await asyncio.sleep(0)
        await other.send(b"OST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
        assert (await other.reply()).status == 405
        assert await slow.at_end()
        silent = await it.client()
        await silent.send(PREFACE)
        assert (await silent.reader.read(1)) == b"\0"  # SETTINGS
        await asyncio.wait_for(silent.reader.read(), 120)

    scene(tmp_path, play, limits={"header_timeout": 0.2})


def test_one_port_under_tls(tmp_path: Path) -> None:
    """ALPN chooses the protocol; without ALPN the client's first bytes do."""
    authority = trustme.CA()
    context = listener_tls(files(tmp_path, authority))

    def trusting(*protocols: str) -> ssl.SSLContext:
        made = ssl.create_default_context()
        authority.configure_trust(made)
        if protocols:
            made.set_alpn_protocols(list(protocols))
        return made

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        for protocols in (("h2",), ("h2", "http/1.1"), ()):
            client = await it.grpc(ssl=trusting(*protocols))
            sent = request(raw_input_contents=[bytes(500_000)])
            assert (await client.ask(sent)).messages == [RESULT]
            assert engine.calls[-1].messages == [sent]
            assert engine.calls[-1].value("x-forwarded-proto") == "https"
        for protocols in (("http/1.1",), ()):
            rest = await it.client(ssl=trusting(*protocols))
            assert (await rest.ask(get("/v2/health/live"))).status == 200

    scene(tmp_path, play, tls=context)


# Limits on calls


def test_too_many_streams(tmp_path: Path) -> None:
    """A stream above the limit is refused with REFUSED_STREAM, and the others continue."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.grpc()
        await until(lambda: client.h2.remote_settings.max_concurrent_streams == 3)
        calls = [client.call() for _ in range(3)]
        for call in calls:
            await call.send(request(), ended=True)
        await until(lambda: len(engine.calls) == 3)
        client.h2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 100
        client.h2.remote_settings.acknowledge()
        refused = client.call()
        await refused.over()
        assert refused.was_reset == ErrorCodes.REFUSED_STREAM
        calls[0].reset()
        again = client.call()
        await again.send(request(), ended=True)
        await until(lambda: len(engine.calls) == 4)

    scene(tmp_path, play, waits, limits={"max_streams": 3})


def test_pings_are_answered(tmp_path: Path) -> None:
    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.grpc()
        call = client.call()
        await call.send(request(), ended=True)
        for number in range(1, 20):
            client.h2.ping(number.to_bytes(8))
            client.flush()
            await until(lambda number=number: client.num_pings == number)
        assert not call.is_over

    scene(tmp_path, play, waits)


def test_an_idle_connection(tmp_path: Path) -> None:
    """An idle connection gets GOAWAY and is closed; a connection with an open call is not idle."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        idle, busy = await it.grpc(), await it.grpc()
        call = busy.call()
        await call.send(request(), ended=True)
        await until(lambda: idle.is_lost)
        assert idle.goaways and idle.goaways[0].error_code == 0
        assert not busy.goaways and not call.is_over

    scene(tmp_path, play, waits, limits={"idle_timeout": 0.2})


FLOODS = {
    "pings": b"\0\0\x08\6\0\0\0\0\0" + bytes(8),
    "settings": EMPTY_SETTINGS,
    "priorities": b"\0\0\5\2\0\0\0\0\x03" + bytes(5),
    "unknown frames": b"\0\0\0\x77\0\0\0\0\0",
    "window updates": b"\0\0\4\x08\0\0\0\0\0\0\0\0\1",
}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS)
def test_floods(tmp_path: Path, frame: bytes) -> None:
    """A connection that floods ends with ENHANCE_YOUR_CALM; other connections are still served."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        good = await it.grpc()
        flood = await it.client()
        await flood.send(PREFACE + EMPTY_SETTINGS)
        found = b""
        try:
            for _ in range(40):
                flood.writer.write(frame * 1000)
                await flood.writer.drain()
            found = await asyncio.wait_for(flood.reader.read(), 120)
        except ConnectionError:
            pass
        assert not found or ErrorCodes.ENHANCE_YOUR_CALM.to_bytes(4) in found
        assert (await good.ask(request())).status == 0

    scene(tmp_path, play, sweep_seconds=1.0)


def test_a_flood_of_cancelled_calls(tmp_path: Path) -> None:
    """A client that keeps opening and cancelling calls (CVE-2023-44487) loses its connection, and no call stays in
    flight at the engine."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        good, bad = await it.grpc(), await it.grpc()
        for _ in range(300):
            call = bad.call()
            await call.send(request(), ended=True)
            call.reset()
            if bad.is_lost:
                break
        await until(lambda: bad.is_lost)
        assert bad.goaways[-1].error_code == ErrorCodes.ENHANCE_YOUR_CALM
        await until(lambda: it.in_flight() == 0)
        engine.script = answer
        assert (await good.ask(request())).status == 0

    scene(tmp_path, play, waits, limits={"max_resets": 100}, sweep_seconds=1.0)


@pytest.mark.parametrize("limit", [2000])
def test_fields_that_are_too_long(tmp_path: Path, limit: int) -> None:
    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.grpc()
        client.call(UNARY, ("x-long", "x" * 5000))
        await until(lambda: client.is_lost or client.calls[1].is_over)
        other = await it.grpc()
        assert (await other.ask(request())).status == 0

    scene(tmp_path, play, limits={"max_header_bytes": limit})


# How they end


def test_draining(tmp_path: Path) -> None:
    """Draining sends GOAWAY twice: calls opened between the two are served, later ones are not, and open calls
    finish."""
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.over()
        await go_on.wait()
        await answer(call)

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client, idle = await it.grpc(), await it.grpc()
        first = client.call()
        await first.send(request(), ended=True)
        await until(lambda: len(engine.calls) == 1)
        it.plane.drain()
        await until(lambda: client.goaways)
        assert client.goaways[0].last_stream_id == 2**31 - 1
        second = client.call()  # sent before the client had read GOAWAY
        await second.send(request(), ended=True)
        await until(lambda: len(engine.calls) == 2)
        await until(lambda: len(client.goaways) == 2)
        assert client.goaways[1].last_stream_id == second.id
        late = client.call()
        await late.send(request(), ended=True)
        await until(lambda: idle.is_lost)
        go_on.set()
        for call in (first, second):
            assert (await call.over()).status == 0
        await until(lambda: client.is_lost)
        assert len(engine.calls) == 2 and late.status is None

    scene(tmp_path, play, slow)


def test_a_client_that_leaves_orderly(tmp_path: Path) -> None:
    """A client's GOAWAY ends none of its calls: they are answered."""

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        client = await it.grpc()
        call = client.call()
        client.leave(0)
        await call.send(request(), ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play)


def test_a_client_that_stops_reading_its_socket(tmp_path: Path) -> None:
    """A client that takes no data for longer than the body timeout loses its connection and its calls."""

    async def long(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(bytes(30_000_000))

    async def play(it: GrpcStage, engine: GrpcEngine) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port, limit=1024)
        client = GrpcClient(reader, writer, is_client=True, settings={SettingCodes.INITIAL_WINDOW_SIZE: 1 << 29})
        it.peers.append(client)
        call = client.call()
        await call.send(request(), ended=True)
        await until(lambda: len(call.data) > 100_000)
        writer.transport.pause_reading()
        client.task.cancel()
        await until(lambda: not it.plane.connections)
        assert it.in_flight() == 0

    scene(tmp_path, play, long, limits={"body_timeout": 0.3})


def test_rules_that_change_under_a_stream(tmp_path: Path) -> None:
    """A call finishes under the rules that it began with; then the connections to its removed endpoint are closed."""
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        await go_on.wait()
        await answer(call)

    async def whole() -> None:
        old, new = await GrpcEngine(slow).start(), await GrpcEngine(answer).start()
        async with grpc_stage(grpc_rules(old), tmp_path) as it:
            client = await it.grpc()
            call = client.call()
            await call.send(request(), ended=True)
            await until(lambda: old.calls)
            it.plane.use_rules(load(grpc_rules(new), tmp_path), 2)
            assert (await client.ask(request())).status == 0
            assert len(new.calls) == 1
            go_on.set()
            assert (await call.over()).status == 0
            await until(lambda: all(peer.is_lost for peer in old.peers))
        await old.stop()
        await new.stop()

    run(whole())
