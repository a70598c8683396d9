"""A request of the gateway's own to one endpoint, awaited: for what concerns the fleet, never on the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.net.http1_client import Http1ClientConnection
from gateway.protocol.conversion.control import rest_error, rest_response, rpc_request
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.grpc_request import ask
from gateway.wire.http1.head import Field, ResponseHead


@dataclass(frozen=True, slots=True)
class Fetched:
    """What an endpoint answered."""

    endpoint: Endpoint
    status: int
    content_type: str
    body: bytes

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class _Fetch:
    """Waits for a connection, then for the whole reply."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._status = 0
        self._content_type = ""
        self._pieces: list[bytes] = []
        self.connection: Http1ClientConnection | None = None
        self.done: asyncio.Future[tuple[int, str, bytes]] = asyncio.get_running_loop().create_future()

    def connected(self, connection: Http1ClientConnection) -> None:
        self.connection = connection
        connection.begin(self, wants_payload=True)
        connection.request_is_sent = True
        connection.send(self._request)

    def connect_failed(self, error: GatewayError) -> None:
        self._settle(error)

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._status = head.status
        self._content_type = (head.value(b"content-type") or b"application/json").decode("latin-1")
        self.reply_continued(data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        if ended:
            self.connection = None
            if not self.done.done():
                self.done.set_result((self._status, self._content_type, b"".join(self._pieces)))

    def reply_failed(self, error: GatewayError) -> None:
        self.connection = None
        self._settle(error)

    def sending_paused(self) -> None:
        """The request is one write, and short."""

    def sending_resumed(self) -> None:
        """See above."""

    def _settle(self, error: GatewayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def fetch(
    endpoint: Endpoint, method: str, target: bytes, body: bytes, *, fields: Sequence[Field] = (), timeout: float | None
) -> Fetched:
    """Ask an endpoint, by REST or, where it has none, by the RPC that asks the same. `fields` are further ones;
    `timeout` is for all of it, in seconds.

    Raises: GatewayError (UPSTREAM_..., OVERLOADED, DEADLINE).
    """
    pool = endpoint.pool
    if pool is None:
        return await _fetch_by_grpc(endpoint, method, target, body, fields, timeout)
    opening = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target)
    length = b"content-length: %d\r\n" % len(body) if body or method != "GET" else b""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    request = _Fetch(b"".join((opening, endpoint.host_line, lines, length, b"\r\n", body)))
    try:
        async with asyncio.timeout(timeout or None):
            connection = pool.acquire(request)
            if connection is not None:
                request.connected(connection)
            status, content_type, answer = await request.done
    except TimeoutError as error:
        raise GatewayError(ErrorKind.DEADLINE, f"{endpoint.url} did not answer within {timeout:g} s") from error
    finally:
        pool.forget(request)
        if request.connection is not None:
            request.connection.abandon()
    return Fetched(endpoint, status, content_type, answer)


async def _fetch_by_grpc(
    endpoint: Endpoint, method: str, target: bytes, body: bytes, fields: Sequence[Field], timeout: float | None
) -> Fetched:
    assert endpoint.streams is not None
    rpc, message = rpc_request(method, target.decode("latin-1"), body)
    answered = await ask(
        endpoint.streams,
        RPCS[rpc].path,
        message,
        authority=endpoint.authority,
        scheme=endpoint.scheme,
        fields=[field for field in fields if field[0] != b"content-type"],
        timeout=timeout,
    )
    reply = rest_response(rpc, answered.message) if answered.is_good else rest_error(answered.status, answered.text)
    return Fetched(endpoint, reply.status, "application/json", reply.body)
