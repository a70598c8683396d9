"""Where requests and replies start and end."""

import asyncio
from pathlib import Path

import pytest

from tests.dataplane.stage import OK, Engine, ReceivedRequest, answer_ok, get, post, rules, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_keep_alive_and_pipelining(tmp_path: Path, plain: bool) -> None:
    """A hundred requests in one write are answered in order, over one connection to the engine."""

    async def by_id(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(received.body), received.body))

    async def scene() -> None:
        engine = Engine(by_id)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(b"".join(post(body=b"%d" % number) for number in range(100)))
            assert [(await client.reply()).body for _ in range(100)] == [b"%d" % number for number in range(100)]
            assert engine.num_connections == 1
        engine.stop()

    run(scene(), plain=plain)


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_a_request_may_come_byte_by_byte(tmp_path: Path, plain: bool) -> None:
    """A request and a reply that arrive one byte at a time are both complete."""

    async def dribble(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        for byte in OK:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async def scene() -> None:
        engine = Engine(dribble)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            for byte in post(body=b"12345"):
                await client.send(bytes([byte]))
                await asyncio.sleep(0.0005)
            assert (await client.reply()).body == b'{"ok":true}'
            assert engine.received[0].body == b"12345"
        engine.stop()

    run(scene(), plain=plain)


def test_chunked_requests(tmp_path: Path) -> None:
    """A chunked body that has arrived whole is sent with a length. One that is still arriving is streamed in new
    chunks, without its extensions and trailers."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            assert (await client.ask(head + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nx-late: 1\r\n\r\n")).status == 200
            await client.send(head + b"3\r\nabc\r\n")
            await until(lambda: it.endpoints()[0].pool.num_busy)
            await client.send(b"2\r\nde\r\n0\r\n\r\n")
            assert (await client.reply()).status == 200
        assert [received.body for received in engine.received] == [b"abcde", b"abcde"]
        assert (engine.received[0].value("content-length"), engine.received[0].value("transfer-encoding")) == (
            "5",
            None,
        )
        assert (engine.received[1].value("content-length"), engine.received[1].value("transfer-encoding")) == (
            None,
            "chunked",
        )
        assert engine.received[0].value("x-late") is None
        engine.stop()

    run(scene())


def test_expect_100_continue(tmp_path: Path) -> None:
    """A client that sends `Expect: 100-continue` gets 100, or an error at once."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        expecting = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        async with stage(rules(engine), tmp_path, limits={"max_body_bytes": 100}) as it:
            client = await it.client()
            await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + expecting % 3)
            assert (await client.head())[0] == 100
            assert (await client.ask(b"abc")).status == 200
            assert engine.received[0].value("expect") is None
            await client.send(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n" + expecting % 101)
            assert (await client.reply()).status == 413
            refused = await it.client()
            await refused.send(b"POST /nothing HTTP/1.1\r\nHost: a\r\n" + expecting % 3)
            assert (await refused.reply()).status == 404
            assert await refused.at_end()
        engine.stop()

    run(scene())


def test_http_1_0(tmp_path: Path) -> None:
    """An HTTP/1.0 client gets no chunks: the reply ends with the connection. A reply with a length allows
    keep-alive."""

    async def chunks(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    async def scene() -> None:
        engine = Engine(chunks)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            reply = await client.ask(b"GET /v2/models/m HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert (reply.body, reply.headers["connection"]) == (b"abcde", "close")
            assert "transfer-encoding" not in reply.headers
            engine.script = answer_ok
            client = await it.client()
            for _ in range(2):
                reply = await client.ask(b"GET /v2/models/m HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
                assert (reply.body, reply.headers["connection"]) == (b'{"ok":true}', "keep-alive")
            assert (await client.ask(b"GET /v2/models/m HTTP/1.0\r\n\r\n")).headers["connection"] == "close"
            assert await client.at_end()
        engine.stop()

    run(scene())


def test_replies_that_end_with_the_connection(tmp_path: Path) -> None:
    """An engine's reply without a length is framed for the client, whose connection stays open."""

    async def until_close(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nabc")
        await writer.drain()
        writer.write(b"de")
        writer.close()

    async def scene() -> None:
        engine = Engine(until_close)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            for _ in range(2):
                assert (await client.ask(post())).body == b"abcde"
        engine.stop()

    run(scene())


def test_head_is_asked_as_get(tmp_path: Path) -> None:
    """HEAD gets the status and fields of GET without a body, from engines and from the gateway itself, and the
    connection stays usable (Triton sends a body to HEAD)."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            for path in ("/v2/models/m", "/v2/health/live", "/v2", "/nothing"):
                reply = await client.ask(get(path).replace(b"GET", b"HEAD"), has_body=False)
                assert (reply.status, int(reply.headers["content-length"]) >= 0) == (404 if "no" in path else 200, True)
            assert (await client.ask(post())).body == b'{"ok":true}'
        assert engine.received[0].line == "GET /v2/models/m HTTP/1.1"
        engine.stop()

    run(scene())


def test_connection_close(tmp_path: Path) -> None:
    """A client that sends `Connection: close` gets its reply and the same field, then its connection is closed; the
    engine's connection is kept."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            for _ in range(3):
                client = await it.client()
                reply = await client.ask(post("/v2/models/m/infer", b"{}", "Connection: close"))
                assert reply.headers["connection"] == "close"
                assert await client.at_end()
            assert engine.num_connections == 1
            assert engine.received[0].value("connection") is None
        engine.stop()

    run(scene())


def test_an_early_answer_ends_the_upload(tmp_path: Path) -> None:
    """When an engine replies before it has read the body, the client gets that reply, and its connection is closed."""

    async def refuse(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nno!")
        await writer.drain()

    async def scene() -> None:
        engine = Engine(refuse, reads_bodies=False)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(
                b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" + bytes(10_000)
            )
            reply = await client.reply()
            assert (reply.status, reply.body) == (400, b"no!")
            await client.send(bytes(10_000))  # the client still sends, without an error
            assert await client.at_end()
        engine.stop()

    run(scene())


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
def test_bytes_behind_a_reply_answer_nobody(tmp_path: Path, plain: bool) -> None:
    """What an engine sends unasked on an idle connection is no reply to the next request, whichever of the two the
    gateway reads first: the connection is dropped."""
    behind = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nbehind"
    writers: list[asyncio.StreamWriter] = []

    async def answer(engine: Engine, received: ReceivedRequest, reader: object, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(OK)

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            for number in range(20):
                assert (await client.ask(post())).body == b'{"ok":true}'
                [endpoint] = it.endpoints()
                for connection in endpoint.pool._idle:
                    connection.idle_since -= 1  # as in a loop that is late
                first, second = (client.writer, writers[-1]) if number % 2 else (writers[-1], client.writer)
                first.write(behind if first is writers[-1] else post())
                second.write(behind if second is writers[-1] else post())
                assert (await client.reply()).body == b'{"ok":true}', number
            assert engine.num_connections == 21
        engine.stop()

    run(scene(), plain=plain)
