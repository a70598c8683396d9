"""The client's stream of a call that the gateway makes in this process: the reply arrives as messages and a status."""

from __future__ import annotations

from typing import Protocol

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, read_message, read_status
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.state import NO_RECEIVER
from gateway.wire.http2.stream import Channel, Stream

_MAX_MESSAGE_BYTES = 1 << 31  # what engines answer is not limited
_STATUS, _MESSAGE = b"grpc-status", b"grpc-message"


class MessageSink(Protocol):
    """Receives what an engine answers. `fields` are all that the reply had, opening and trailers. Where the gateway
    itself ends the call, `CallClient.call_failed` comes in place of the last two."""

    def message_came(self, message: bytes) -> None:
        """A whole message, decompressed.

        Raises: GatewayError where it cannot be understood.
        """

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        """The call's status."""

    def reply_broken(self, error: GatewayError, fields: dict[bytes, bytes]) -> None:
        """The call has ended, and what came was no reply."""


class InProcessStream(Stream):
    """Reads the engine's bytes that calls relay to their clients. `is_paused` is set while the sink takes no more."""

    __slots__ = ("_encoding", "_fault", "_fields", "_reader", "_sink", "is_paused")

    def __init__(self, sink: MessageSink) -> None:
        super().__init__(Channel(), 0, NO_RECEIVER, 0, 0)  # neither is used
        self._sink = sink
        self._reader = MessageReader(_MAX_MESSAGE_BYTES)
        self._fields: dict[bytes, bytes] = {}
        self._encoding = b"identity"
        self._fault: GatewayError | None = None
        self.is_paused = False

    @property
    def is_waiting(self) -> bool:
        return self.is_paused

    def send_headers(self, steady: CachedHeaders, passing: bytes = b"", *, ended: bool = False) -> None:
        self._fields.update(steady.fields)
        self._encoding = self._fields.get(b"grpc-encoding", self._encoding)
        if not ended:
            return
        fields = self._fields
        status = fields.get(b":status", b"200")
        if _STATUS not in fields and status != b"200":
            self._fault = GatewayError(
                ErrorKind.UPSTREAM_PROTOCOL, f"the engine answered with HTTP status {status.decode('ascii')}"
            )
        code = read_status(fields.get(_STATUS))
        if self._fault is not None and (_STATUS not in fields or code == OK):
            self._sink.reply_broken(self._fault, fields)
        else:
            self._sink.reply_ended(code, read_message(fields.get(_MESSAGE)), fields)

    def send_data(self, data: bytes, ended: bool = False) -> None:
        if self._fault is not None:
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                plain = decompress(message, self._encoding, _MAX_MESSAGE_BYTES) if is_compressed else message
                self._sink.message_came(plain)
        except GatewayError as error:  # reported at the end: what relays the bytes goes on
            self._fault = GatewayError(ErrorKind.UPSTREAM_PROTOCOL, error.message)

    def send_trailers(self, steady: CachedHeaders, passing: bytes = b"") -> None:
        self.send_headers(steady, passing, ended=True)

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """The request is whole, and the reply has ended."""

    def credit(self, size: int) -> None:
        """The request is whole."""
