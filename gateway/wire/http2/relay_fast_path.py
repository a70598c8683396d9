"""The fast path between two streams: messages of one are sent on a stream of another connection as they come.

Relaying takes most of a stream's time, so the usual cases of `Boundaries.feed`, which counts messages, and of
`Stream.send_data`, which frames them, are inlined here. All other cases call these; tests compare the two.
"""

from __future__ import annotations

from typing import Protocol

from gateway.wire.grpc import PREFIX, PREFIX_BYTES, Boundaries
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import DATA, pack_head
from gateway.wire.http2.stream import JOIN_BYTES, Stream, StreamReceiver

_unpack_prefix = PREFIX.unpack_from

# The window is returned in pieces of this size: each WINDOW_UPDATE costs a part of what relaying a message does. The
# window of a stream has at least 64 KiB, of which the stream itself keeps back less than half.
_PAID_AT_ONCE = 16 * 1024


class Relayer(StreamReceiver, Protocol):
    """The receiver of the stream before and after."""

    boundaries: Boundaries  # of the messages that pass
    owed: int  # relayed bytes whose window is not returned yet

    def pay(self) -> None:
        """Return the window that is owed."""
        ...


class RelayFastPath:
    """Receives a stream in place of `relayer`, to which it passes all but data."""

    __slots__ = ("_boundaries", "_channel", "_relayer", "_target")

    def __init__(self, relayer: Relayer, target: Stream) -> None:
        """`target` is the stream that the data is sent on. Nothing else is sent on it within a message."""
        self._relayer = relayer
        self._boundaries = relayer.boundaries
        self._target = target
        self._channel = target.channel

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        self._relayer.headers_received(stream, block, ended)

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        if ended:
            self._relayer.data_received(stream, data, True)
            return
        boundaries, target, channel = self._boundaries, self._target, self._channel
        size = len(data)
        if size > PREFIX_BYTES and boundaries.is_between_messages:  # the usual case: a piece is a message
            is_compressed, length = _unpack_prefix(data)
            if length + PREFIX_BYTES == size:
                boundaries.count += 1
                if data[PREFIX_BYTES] == boundaries.mark and not is_compressed:
                    boundaries.num_marked += 1
            else:
                boundaries.feed(data)
        else:
            boundaries.feed(data)
        if (
            size <= JOIN_BYTES  # and so no longer than a frame may be (RFC 9113 section 4.2)
            and size <= target.send_window
            and size <= channel.send_window
            and not target.waiting
            and not channel.is_blocked
            and not target.is_sent
        ):
            target.send_window -= size
            channel.send_window -= size
            out = channel.out
            is_first = not out
            out.append(pack_head(size << 8 | DATA, 0, target.id) + data)
            if is_first:
                channel.owner.has_relayed()
        else:
            target.send_data(data)
        relayer = self._relayer
        relayer.owed += size
        if relayer.owed >= _PAID_AT_ONCE and not target.waiting:
            relayer.pay()

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self._relayer.trailers_received(stream, block)

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self._relayer.stream_reset(stream, code, why)

    def drained(self, stream: Stream) -> None:
        self._relayer.drained(stream)
