"""The stream of a client that is not there: what a call writes to it is read back as messages and a status."""

from __future__ import annotations

from typing import Protocol, cast

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.grpc_status import OK, read_message, read_status
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.stream import Channel, Stream, StreamReceiver

_MAX_MESSAGE_BYTES = 1 << 31  # what engines answer is not limited
_STATUS, _MESSAGE = b"grpc-status", b"grpc-message"


class ReplyTaker(Protocol):
    """Whoever the call answers; it hears of the end once. `fields` are all that the reply had, opening and trailers."""

    def message_came(self, message: bytes) -> None:
        """A whole message, decompressed.

        Raises: GatewayError where it cannot be understood.
        """
        ...

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        """The call's status."""
        ...

    def reply_broken(self, error: GatewayError, fields: dict[bytes, bytes]) -> None:
        """The call has ended, and what came was no reply."""
        ...


class ReplyStream(Stream):
    """Takes what calls send to their clients. `is_paused` is set while the taker takes no more."""

    __slots__ = ("_encoding", "_fault", "_fields", "_reader", "_taker", "is_paused")

    def __init__(self, taker: ReplyTaker) -> None:
        super().__init__(cast(Channel, None), 0, cast(StreamReceiver, None), 0, 0)
        self._taker = taker
        self._reader = MessageReader(_MAX_MESSAGE_BYTES)
        self._fields: dict[bytes, bytes] = {}
        self._encoding = b"identity"
        self._fault: GatewayError | None = None
        self.is_paused = False

    def __repr__(self) -> str:
        return f"<ReplyStream to {self._taker!r}>"

    @property
    def is_waiting(self) -> bool:
        return self.is_paused

    def send_headers(self, steady: Steady, passing: bytes = b"", *, ended: bool = False) -> None:
        self._fields.update(steady.fields)
        self._encoding = self._fields.get(b"grpc-encoding", self._encoding)
        if not ended:
            return
        fields = self._fields
        status = fields.get(b":status", b"200")
        if _STATUS not in fields and status != b"200":
            self._fault = _of_engine(f"the engine answered with HTTP status {status.decode('ascii')}")
        code = read_status(fields.get(_STATUS))
        if self._fault is not None and (_STATUS not in fields or code == OK):
            self._taker.reply_broken(self._fault, fields)
        else:
            self._taker.reply_ended(code, read_message(fields.get(_MESSAGE)), fields)

    def send_data(self, data: bytes, ended: bool = False) -> None:
        if self._fault is not None:  # the rest goes the same way
            return
        try:
            for is_compressed, message in self._reader.feed(data):
                plain = decompress(message, self._encoding, _MAX_MESSAGE_BYTES) if is_compressed else message
                self._taker.message_came(plain)
        except GatewayError as error:  # whoever relays the engine's bytes has no part in it
            self._fault = _of_engine(error.message)

    def send_trailers(self, steady: Steady, passing: bytes = b"") -> None:
        self.send_headers(steady, passing, ended=True)

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """The request is whole, and the reply has ended."""

    def credit(self, size: int) -> None:
        """The request is whole."""


def _of_engine(text: str) -> GatewayError:
    return GatewayError(ErrorKind.UPSTREAM_PROTOCOL, text)
