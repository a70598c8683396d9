"""A unary gRPC call of the gateway's own to one endpoint, awaited: never on the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.net.http2_client import Http2ClientConnection, Http2Pool
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, UNKNOWN, read_message, read_status
from gateway.wire.grpc import MessageReader, framed
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.stream import Stream

# What a server answers about itself is short; nothing here is a tensor... but statistics of many models are long.
_MAX_ANSWER_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answered:
    """How a call ended: its status and what it said, and the message where there is one."""

    status: int
    text: str
    message: bytes

    @property
    def is_good(self) -> bool:
        return self.status == OK


class _Asking:
    """Waits for a stream, then for the whole reply."""

    def __init__(self, fields: list[Field], request: bytes) -> None:
        self._fields = fields
        self._request = request
        self._reader = MessageReader(_MAX_ANSWER_BYTES)
        self._message = b""
        self.stream: Stream | None = None
        self.done: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()

    def connected(self, connection: Http2ClientConnection) -> None:
        self.stream = connection.open_stream(self)
        self.stream.send_headers(Steady(self._fields))
        self.stream.send_data(framed(self._request), True)

    def connect_failed(self, error: GatewayError) -> None:
        self._settle(error)

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        if block.value(b":status") != b"200":
            self._settle(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the endpoint does not speak gRPC"))
        elif ended:
            self.trailers_received(stream, block)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        try:
            for is_compressed, message in self._reader.feed(data):
                if is_compressed:  # nobody said that it may be
                    raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the endpoint answered with a compressed message")
                self._message = message
        except GatewayError as error:
            self._settle(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, error.message))
            return
        stream.credit(len(data))
        if ended:
            self._settle(GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the reply ended without a status"))

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.stream = None
        if not self.done.done():
            told = block.value(b"grpc-status")
            status = read_status(told) if told is not None else UNKNOWN
            self.done.set_result(Answered(status, read_message(block.value(b"grpc-message")), self._message))

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self.stream = None
        self._settle(GatewayError(ErrorKind.UPSTREAM_RESET, f"the endpoint broke the call off: {why}"))

    def drained(self, stream: Stream) -> None:
        """All is sent."""

    def _settle(self, error: GatewayError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


async def ask(
    pool: Http2Pool,
    path: str,
    message: bytes,
    *,
    authority: bytes,
    scheme: bytes = b"http",
    fields: Iterable[Field] = (),
    timeout: float | None,
) -> Answered:
    """Call a unary method. `fields` are further metadata; `timeout` is for all of it, in seconds, None for none.

    Raises: GatewayError (UPSTREAM_..., OVERLOADED, DEADLINE) where no status came.
    """
    opening: list[Field] = [
        (b":method", b"POST"),
        (b":scheme", scheme),
        (b":path", path.encode("ascii")),
        (b":authority", authority),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    asking = _Asking([*opening, *fields], message)
    try:
        async with asyncio.timeout(timeout or None):
            connection = pool.acquire(asking)
            if connection is not None:
                asking.connected(connection)
            return await asking.done
    except TimeoutError as error:
        what = f"{pool.host}:{pool.port} did not answer within {timeout:g} s"
        raise GatewayError(ErrorKind.DEADLINE, what) from error
    finally:
        pool.forget(asking)
        if asking.stream is not None:
            asking.stream.reset()
