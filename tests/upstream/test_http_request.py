"""The gateway's own requests to an endpoint."""

import asyncio
from typing import Any

import pytest

from gateway.config.engine_specs import ConnectionSpec, EndpointSpec, EngineSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.endpoint_client import fetch
from tests.dataplane.stage import run, until
from tests.net.stage import OK, Act, Engine, engine


def endpoint_of(it: Engine, **limits: Any) -> Endpoint:
    return Endpoint(
        EngineSpec("it", (), connections=ConnectionSpec(**limits)), EndpointSpec(f"http://127.0.0.1:{it.port}"), None
    )


@pytest.mark.parametrize(
    "reply, status, content_type, body",
    [
        (OK, 200, "application/json", b"ok"),
        (b"HTTP/1.1 404 No\r\nContent-Type: text/plain\r\nContent-Length: 0\r\n\r\n", 404, "text/plain", b""),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
            200,
            "application/json",
            b"abcde",
        ),
    ],
)
def test_replies(reply: bytes, status: int, content_type: str, body: bytes) -> None:
    """A fetched reply has a status, a content type, and the body without its framing."""

    async def scene() -> None:
        async with engine(reply) as it:
            endpoint = endpoint_of(it)
            fetched = await fetch(endpoint, "GET", b"/v2/models/stats", b"", timeout=30.0)
            assert (fetched.status, fetched.content_type, fetched.body) == (status, content_type, body)
            assert fetched.is_good is (status == 200)
            assert fetched.endpoint is endpoint
            assert endpoint.pool.num_busy == 0
            endpoint.pool.close_idle()

    run(scene())


def test_requests() -> None:
    """A request names the endpoint, carries the given fields, and a POST has a content length."""

    async def scene() -> None:
        async with engine() as it:
            endpoint = endpoint_of(it)
            await fetch(endpoint, "GET", b"/v2/logging", b"", timeout=None)
            await fetch(endpoint, "POST", b"/v2/logging", b"", fields=[(b"x-a", b"b")], timeout=None)
            host = b"host: 127.0.0.1:%d\r\n" % it.port
            assert it.heads == [
                b"GET /v2/logging HTTP/1.1\r\n" + host + b"\r\n",
                b"POST /v2/logging HTTP/1.1\r\n" + host + b"x-a: b\r\ncontent-length: 0\r\n\r\n",
            ]
            assert len(it.writers) == 1
            endpoint.pool.close_idle()

    run(scene())


@pytest.mark.parametrize(
    "script, kind",
    [
        ((Act.CLOSE,), ErrorKind.UPSTREAM_RESET),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Act.CLOSE), ErrorKind.UPSTREAM_RESET),
        ((b"hello\r\n\r\n",), ErrorKind.UPSTREAM_PROTOCOL),
        ((Act.WAIT,), ErrorKind.DEADLINE),
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nabc", Act.WAIT), ErrorKind.DEADLINE),
    ],
)
def test_failures(script: tuple[bytes | Act, ...], kind: ErrorKind) -> None:
    """A failure has its kind and leaves no connection open; a partial reply is a failure."""

    async def scene() -> None:
        async with engine(*script) as it:
            endpoint = endpoint_of(it)
            with pytest.raises(GatewayError) as failed:
                await fetch(endpoint, "GET", b"/v2", b"", timeout=0.1 if Act.WAIT in script else 30.0)
            assert failed.value.kind is kind
            it.go_on.set()
            await until(lambda: endpoint.pool.size == 0 and it.num_open == 0)

    run(scene())


def test_nobody_listens() -> None:
    """An endpoint that refuses connections raises UPSTREAM_CONNECT."""

    async def scene() -> None:
        async with engine() as it:
            endpoint = endpoint_of(it)
        with pytest.raises(GatewayError) as failed:
            await fetch(endpoint, "GET", b"/v2", b"", timeout=120)
        assert failed.value.kind is ErrorKind.UPSTREAM_CONNECT

    run(scene())


def test_it_waits_in_line_like_everybody() -> None:
    """With all connections busy it waits in the queue, leaves it at its timeout, and fails if the queue is full."""

    async def scene() -> None:
        async with engine(Act.WAIT, OK) as it:
            endpoint = endpoint_of(it, max_connections=1, max_pending=1)
            first = asyncio.ensure_future(fetch(endpoint, "GET", b"/v2", b"", timeout=120))
            await until(lambda: it.heads)
            with pytest.raises(GatewayError, match=r"did not answer within 0\.05 s") as late:
                await fetch(endpoint, "GET", b"/v2", b"", timeout=0.05)
            assert late.value.kind is ErrorKind.DEADLINE
            assert repr(endpoint.pool).endswith("1 connections, 0 idle, 0 wait>")
            second = asyncio.ensure_future(fetch(endpoint, "GET", b"/v2", b"", timeout=120))
            await until(lambda: "1 wait" in repr(endpoint.pool))
            with pytest.raises(GatewayError) as full:
                await fetch(endpoint, "GET", b"/v2", b"", timeout=120)
            assert full.value.kind is ErrorKind.OVERLOADED
            it.go_on.set()
            assert (await first).body == (await second).body == b"ok"
            endpoint.pool.close_idle()

    run(scene())


def test_it_can_be_cancelled() -> None:
    """Cancelling the call ends the request at the engine too."""

    async def scene() -> None:
        async with engine(Act.WAIT) as it:
            endpoint = endpoint_of(it)
            asking = asyncio.ensure_future(fetch(endpoint, "GET", b"/v2", b"", timeout=None))
            await until(lambda: it.heads)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            it.go_on.set()
            await until(lambda: endpoint.pool.size == 0 and it.num_open == 0)

    run(scene())
