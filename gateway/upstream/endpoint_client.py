"""Requests that the gateway itself makes to one endpoint, awaited: a REST request, a unary gRPC call. Never on the hot
path."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Generic, TypeVar

from gateway.net.http1_client import Http1ClientConnection, Http1Pool
from gateway.net.http2_client import Http2ClientConnection, Http2Pool
from gateway.protocol.conversion.control import rest_response, rpc_request
from gateway.protocol.conversion.control_errors import rest_error
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_methods import RPCS
from gateway.protocol.grpc_status import OK, UNKNOWN, read_message, read_status
from gateway.upstream.endpoint import Endpoint
from gateway.wire.grpc import MessageReader, framed
from gateway.wire.http1.head import ResponseHead
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.stream import Stream

# Metadata is short, but the statistics of many models are long.
_MAX_MESSAGE_BYTES = 256 * 1024 * 1024

# What belongs to the body as REST has it.
OF_REST = frozenset(
    {
        *(b"accept", b"accept-encoding", b"content-encoding", b"content-length", b"content-type", b"expect", b"host"),
        *(b"inference-header-content-length", b"te"),
    }
)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class UnaryReply:
    """A call's status and its text, and the message where there is one."""

    status: int
    text: str
    message: bytes

    @property
    def is_good(self) -> bool:
        return self.status == OK


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A reply of REST; `code` is the status of the call that it was converted from, for a client of gRPC."""

    endpoint: Endpoint
    status: int
    content_type: str
    body: bytes
    code: int | None = None

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300


class _Awaited(ABC, Generic[Result]):
    """Waits for a connection, then for the complete reply."""

    def __init__(self) -> None:
        # Errors are results: a future with an exception would be in a circle with the traceback
        self.done: asyncio.Future[Result | GatewayError] = asyncio.get_running_loop().create_future()
        self.sent_at = 0.0  # by `time.monotonic`

    @abstractmethod
    def connected(self, connection: Any) -> None: ...

    @abstractmethod
    def cancel(self) -> None:
        """Cancel the request where it is under way."""

    def connect_failed(self, error: GatewayError) -> None:
        self._fail(error)

    def _fail(self, error: GatewayError) -> None:
        if not self.done.done():
            self.done.set_result(error)

    def _succeed(self, result: Result) -> None:
        if not self.done.done():
            self.done.set_result(result)

    async def reply(self, pool: Http1Pool | Http2Pool, where: str, timeout: float | None) -> Result:
        """The reply, within `timeout` seconds.

        Raises: GatewayError (UPSTREAM_..., OVERLOADED, DEADLINE).
        """
        try:
            async with asyncio.timeout(timeout or None):
                connection = pool.acquire(self)
                if connection is not None:
                    self.connected(connection)
                result = await self.done
        except TimeoutError as error:
            pool.timed_out(self.sent_at)
            raise GatewayError(ErrorKind.DEADLINE, f"{where} did not answer within {timeout:g} s") from error
        finally:
            pool.forget(self)
            self.cancel()
        if isinstance(result, GatewayError):
            raise result.at("")  # a copy, for the same reason
        return result


class _UnaryCall(_Awaited[UnaryReply]):
    def __init__(self, fields: list[Field], request: bytes, max_bytes: int) -> None:
        super().__init__()
        self._fields = fields
        self._request = request
        self._reader = MessageReader(max_bytes)
        self._message = b""
        self.stream: Stream | None = None

    def connected(self, connection: Http2ClientConnection) -> None:
        self.sent_at = monotonic()
        self.stream = connection.open_stream(self)
        self.stream.send_headers(CachedHeaders(self._fields))
        self.stream.send_data(framed(self._request), True)

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        if block.value(b":status") != b"200":
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the endpoint does not speak gRPC"))
        elif ended:
            self.trailers_received(stream, block)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:  # the request does not accept it
                    raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the endpoint answered with a compressed message")
                self._message = message
        except GatewayError as error:
            text = error.message.removesuffix(" (--max-body-bytes)")  # the bound is another one here
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, text))
            return
        stream.credit(len(data))
        if ended:
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the reply ended without a status"))

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.stream = None
        status = block.value(b"grpc-status")
        number = read_status(status) if status is not None else UNKNOWN
        self._succeed(UnaryReply(number, read_message(block.value(b"grpc-message")), self._message))

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self.stream = None
        self._fail(GatewayError(ErrorKind.UPSTREAM_RESET, f"the endpoint broke the call off: {why}"))

    def drained(self, stream: Stream) -> None:
        """All is sent."""

    def cancel(self) -> None:
        if self.stream is not None:
            self.stream.reset()


class _HttpRequest(_Awaited[tuple[int, str, bytes]]):
    def __init__(self, request: bytes, max_bytes: int) -> None:
        super().__init__()
        self._request = request
        self._max_bytes = self._num_left = max_bytes
        self._status = 0
        self._content_type = ""
        self._pieces: list[bytes] = []
        self.connection: Http1ClientConnection | None = None

    def connected(self, connection: Http1ClientConnection) -> None:
        self.sent_at = monotonic()
        self.connection = connection
        connection.begin(self, wants_payload=True)
        connection.request_is_sent = True
        connection.send(self._request)

    def reply_started(self, head: ResponseHead, data: bytes, ended: bool) -> None:
        self._status = head.status
        self._content_type = (head.value(b"content-type") or b"application/json").decode("latin-1")
        self.reply_continued(data, ended)

    def reply_continued(self, data: bytes, ended: bool) -> None:
        self._pieces.append(data)
        self._num_left -= len(data)
        if self._num_left < 0:
            self._fail(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"its reply has more than {self._max_bytes} bytes"))
        elif ended:
            self.connection = None
            self._succeed((self._status, self._content_type, b"".join(self._pieces)))

    def reply_failed(self, error: GatewayError) -> None:
        self.connection = None
        self._fail(error)

    def sending_paused(self) -> None:
        """The request is one short write."""

    def sending_resumed(self) -> None:
        """The request is one short write."""

    def cancel(self) -> None:
        if self.connection is not None:
            self.connection.abandon()


async def call_unary(
    endpoint: Endpoint,
    path: str,
    message: bytes,
    *,
    fields: Iterable[Field] = (),
    timeout: float | None,
    max_bytes: int = _MAX_MESSAGE_BYTES,
) -> UnaryReply:
    """Call a unary method of an endpoint with gRPC. `fields` are further metadata; `timeout` is for the whole call, in
    seconds, None for none; `max_bytes` bounds the reply's message.

    Raises: GatewayError (UPSTREAM_..., OVERLOADED, DEADLINE) where no status came.
    """
    opening: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", endpoint.scheme),
        (b":path", path.encode("ascii")),
        (b":authority", endpoint.authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    pool = endpoint.streams
    assert pool is not None, f"{endpoint.url} has no gRPC"
    return await _UnaryCall([*opening, *fields], message, max_bytes).reply(pool, f"{pool.host}:{pool.port}", timeout)


async def fetch(
    endpoint: Endpoint,
    method: str,
    target: bytes,
    body: bytes,
    *,
    fields: Sequence[Field] = (),
    timeout: float | None,
    by_grpc: bool = False,
    max_bytes: int = _MAX_MESSAGE_BYTES,
) -> HttpReply:
    """Send a REST request or, to an endpoint without REST, the equivalent RPC; `by_grpc`: wherever the endpoint has
    gRPC. `fields` are further ones; `timeout` is for the whole request, in seconds;
    `max_bytes` bounds the body of the reply.

    Raises: GatewayError (UPSTREAM_..., OVERLOADED, DEADLINE).
    """
    pool = endpoint.pool
    if pool is None or (by_grpc and endpoint.streams is not None):
        fields = [field for field in fields if field[0] not in OF_REST and not field[0].startswith(b"grpc-")]
        rpc, message = rpc_request(method, target.decode("latin-1"), body, of_rpc=by_grpc)
        path = RPCS[rpc].path
        call = await call_unary(endpoint, path, message, fields=fields, timeout=timeout, max_bytes=max_bytes)
        rest = rest_response(rpc, call.message) if call.is_good else rest_error(call.status, call.text)
        return HttpReply(endpoint, rest.status, "application/json", rest.body, call.status if by_grpc else None)
    opening = b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), target)
    length = b"content-length: %d\r\n" % len(body) if body or method != "GET" else b""
    lines = b"".join([b"%b: %b\r\n" % field for field in fields])
    request = _HttpRequest(b"".join((opening, endpoint.host_line, lines, length, b"\r\n", body)), max_bytes)
    return HttpReply(endpoint, *await request.reply(pool, endpoint.url, timeout))
