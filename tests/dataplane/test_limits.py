"""Limits on a client's sizes, times and connections; malformed requests are never forwarded."""

import asyncio
import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.grpc.stage import grpc_stage
from tests.dataplane.stage import Engine, post, rules, run, stage, until

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\n"

MALFORMED = {
    "both lengths": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other way": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "a length in hexadecimal": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "an empty length": HEAD + b"Content-Length:\r\n\r\n",
    "a length with an underscore": HEAD + b"Content-Length: 1_0\r\n\r\n0123456789",
    "an unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked, then another": HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked under identity": HEAD + b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded field": HEAD + b"X: a\r\n b\r\nContent-Length: 0\r\n\r\n",
    "a folded length": HEAD + b"Content-Length: 3\r\n 4\r\n\r\nabc",
    "a fold of a field that is cut out": HEAD + b"X-Request-Id: a\r\n Content-Length: 3\r\n\r\nabc",
    "a bare LF": HEAD + b"X: a\nContent-Length: 0\r\n\r\n",
    "bare LFs only": b"POST /v2/models/m/infer HTTP/1.1\nHost: a\n\n",
    "a bare CR": HEAD + b"X: a\rb\r\nContent-Length: 0\r\n\r\n",
    "a NUL": HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "a NUL in a field that is cut out": HEAD + b"X-Request-Id: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "no field name": HEAD + b": a\r\nContent-Length: 0\r\n\r\n",
    "no colon": HEAD + b"X\r\nContent-Length: 0\r\n\r\n",
    "no Host": b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "two Hosts": HEAD + b"Host: b\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.0 with chunks": HEAD.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "another version": HEAD.replace(b"1.1", b"2.0") + b"Content-Length: 0\r\n\r\n",
    "another protocol": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "a JSON length twice": HEAD
    + b"Inference-Header-Content-Length: 1\r\nInference-Header-Content-Length: 2\r\nContent-Length: 0\r\n\r\n",
    "another expectation": HEAD + b"Expect: something\r\nContent-Length: 0\r\n\r\n",
}
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
BAD_CHUNKS = {
    "no number": CHUNKED + b"x\r\nabc\r\n0\r\n\r\n",
    "a sign": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a minus": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "an underscore": CHUNKED + b"1_0\r\n0123456789abcdef\r\n0\r\n\r\n",
    "0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a space before": CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "nothing": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "far too large": CHUNKED + b"fffffffffffffffff\r\nabc\r\n0\r\n\r\n",
    "a bare LF": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a bare LF in an extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a line without end": CHUNKED + b"3;" + b"a" * 1000,
    "a malformed trailer": CHUNKED + b"3\r\nabc\r\n0\r\nno colon\r\n\r\n",
}


@pytest.mark.parametrize("request_bytes", MALFORMED.values(), ids=MALFORMED)
def test_ambiguous_heads_are_refused(tmp_path: Path, request_bytes: bytes) -> None:
    """An ambiguous head gets 400 and the connection is closed. The engine gets neither the request nor the bytes after
    it."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(request_bytes + post("/v2/models/smuggled/infer"))
            reply = await client.reply()
            assert (reply.status, reply.reason) == (400, "bad_request"), reply
            assert b"malformed request: " in reply.body
            assert await client.at_end()
            assert engine.received == []
        engine.stop()

    run(scene())


@pytest.mark.parametrize("request_bytes", BAD_CHUNKS.values(), ids=BAD_CHUNKS)
def test_bad_chunks_are_refused(tmp_path: Path, request_bytes: bytes) -> None:
    """A malformed chunk gets 400 and the connection is closed. The engine gets neither the whole request nor the bytes
    after it."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(request_bytes + post("/v2/models/smuggled/infer"))
            assert (await client.reply()).status == 400
            assert await client.at_end()
            assert engine.received == []
        engine.stop()

    run(scene())


def test_a_malformed_request_after_a_good_one(tmp_path: Path) -> None:
    """In a pipeline the good request gets its reply first, then the bad one gets 400, and nothing after it is read."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            await client.send(post() + MALFORMED["both lengths"] + post())
            assert (await client.reply()).status == 200
            assert (await client.reply()).status == 400
            assert await client.at_end()
            assert len(engine.received) == 1
        engine.stop()

    run(scene())


def test_length_limits(tmp_path: Path) -> None:
    """A head that is too long gets 431. A body that is too long gets 413, whether its length is declared or not."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        limits = {"max_header_bytes": 1000, "max_body_bytes": 1000}
        async with stage(rules(engine), tmp_path, limits=limits) as it:
            long_head = HEAD + b"X: " + b"a" * 1000
            assert (await it.ask(long_head)).status == 431
            assert (await it.ask(long_head + b"\r\nContent-Length: 0\r\n\r\n")).status == 431
            assert (await it.ask(post(body=bytes(1000)))).status == 200
            reply = await it.ask(post(body=bytes(1001)))
            assert (reply.status, reply.reason) == (413, "body_too_large")
            assert b"--max-body-bytes" in reply.body
            assert (await it.ask(CHUNKED + b"3e9\r\n" + bytes(1001) + b"\r\n0\r\n\r\n")).status == 413
            assert it.errors() == {"headers_too_large": 2, "body_too_large": 2}
        engine.stop()

    run(scene())


def test_a_client_that_has_reset_is_let_go_of(tmp_path: Path) -> None:
    """asyncio's own transport raises when it half-closes a connection that the client has reset: the connection is
    removed."""

    class Reset:
        """A transport whose socket is no longer connected."""

        def __init__(self, transport: asyncio.Transport) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write_eof(self) -> None:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, limits={"body_timeout": 0.1}) as it:
            client = await it.client()
            await client.send(post(body=b"x" * 100)[:-50])
            await until(lambda: it.plane.connections)
            (connection,) = it.plane.connections
            connection._transport = Reset(connection._transport)  # type: ignore[assignment]
            await until(lambda: not it.plane.connections)
        engine.stop()

    run(scene(), plain=True)


def test_silent_clients(tmp_path: Path) -> None:
    """A head or a body that stalls gets 408; an idle connection is closed without a reply."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        limits = {"header_timeout": 0.1, "idle_timeout": 0.1, "body_timeout": 0.1}
        async with stage(rules(engine), tmp_path, limits=limits) as it:
            slow, stuck, idle = [await it.client() for _ in range(3)]
            await slow.send(HEAD)
            await stuck.send(HEAD + b"Content-Length: 10\r\n\r\nabc")
            reply = await slow.reply()
            assert (reply.status, reply.reason) == (408, "request_timeout")
            assert (await stuck.reply()).status == 408
            assert await idle.at_end()
        engine.stop()

    run(scene())


def test_connections_of_an_address(tmp_path: Path) -> None:
    """A client above --max-per-address gets 503, and clients of other addresses are served."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(rules(engine), tmp_path, limits={"max_per_address": 2}) as it:
            assert (await (await it.client()).ask(post())).status == 200
            await it.client()  # which sends nothing
            await until(lambda: len(it.plane.connections) == 2)
            reply = await (await it.client()).reply()
            assert (reply.status, reply.reason) == (503, "overloaded")
            assert b"--max-per-address" in reply.body
            if sys.platform == "linux":  # where all of 127/8 is this host
                other = await it.client(local_addr=("127.0.0.2", 0))
                assert (await other.ask(post())).status == 200
        engine.stop()

    run(scene())


def test_connection_limit(tmp_path: Path) -> None:
    """A client above --max-connections gets 503; once a connection closes, the next client is accepted."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine), tmp_path, limits={"max_connections": 1}) as it:
            first = await it.client()
            assert (await first.ask(post())).status == 200
            second = await it.client()
            reply = await second.reply()
            assert (reply.status, reply.reason) == (503, "overloaded")
            first.close()
            second.close()
            await asyncio.sleep(0)
            while (await it.ask(post())).status != 200:
                await asyncio.sleep(0.01)
        engine.stop()

    run(scene())
