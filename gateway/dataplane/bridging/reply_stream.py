"""The stream of a client that is not there: what a call writes to it is read back as messages and a status."""

from __future__ import annotations

from typing import Protocol, cast

from gateway.protocol.grpc_status import read_message, read_status
from gateway.wire.grpc import MessageReader, decompress
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import Steady
from gateway.wire.http2.stream import Channel, Receiver, Stream

_MAX_MESSAGE_BYTES = 1 << 31  # what engines answer is not limited


class ReplyTaker(Protocol):
    """Whoever the call answers."""

    def message_came(self, message: bytes) -> None:
        """A whole message, decompressed."""
        ...

    def reply_ended(self, code: int, text: str, fields: dict[bytes, bytes]) -> None:
        """The call's status; `fields` are all that the reply had, opening and trailers."""
        ...


class ReplyStream(Stream):
    """Takes what calls send to their clients. `is_paused` is set while the taker takes no more."""

    __slots__ = ("_encoding", "_fields", "_reader", "_taker", "is_paused")

    def __init__(self, taker: ReplyTaker) -> None:
        super().__init__(cast(Channel, None), 0, cast(Receiver, None), 0, 0)
        self._taker = taker
        self._reader = MessageReader(_MAX_MESSAGE_BYTES)
        self._fields: dict[bytes, bytes] = {}
        self._encoding = b"identity"
        self.is_paused = False

    def __repr__(self) -> str:
        return f"<ReplyStream to {self._taker!r}>"

    @property
    def is_waiting(self) -> bool:
        return self.is_paused

    def send_headers(self, steady: Steady, passing: bytes = b"", *, ended: bool = False) -> None:
        self._fields.update(steady.fields)
        self._encoding = self._fields.get(b"grpc-encoding", self._encoding)
        if ended:
            code = read_status(self._fields.get(b"grpc-status"))
            self._taker.reply_ended(code, read_message(self._fields.get(b"grpc-message")), self._fields)

    def send_data(self, data: bytes, ended: bool = False) -> None:
        for is_compressed, message in self._reader.feed(data):
            plain = decompress(message, self._encoding, _MAX_MESSAGE_BYTES) if is_compressed else message
            self._taker.message_came(plain)

    def send_trailers(self, steady: Steady, passing: bytes = b"") -> None:
        self.send_headers(steady, passing, ended=True)

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """The request is whole, and the reply has ended."""

    def credit(self, size: int) -> None:
        """The request is whole."""
