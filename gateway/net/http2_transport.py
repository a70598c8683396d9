"""HTTP/2 on a socket: the transport that client and server connections share, and the server side."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import NamedTuple, cast
from weakref import WeakKeyDictionary

from gateway.net.sockets import TURN_BYTES, has_hung_up
from gateway.wire.http2.connection import Http2Connection, Opening
from gateway.wire.http2.field_decoder import OwnNames
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import MAX_WINDOW, ErrorCode
from gateway.wire.http2.peer_state import ENDED
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream

# The most that is buffered for a peer that does not read: acknowledgements, which windows do not bound.
_MAX_UNSENT_BYTES = 4 * 1024 * 1024
# From this size on, pieces are written as they are instead of being joined.
_JOIN_BYTES = 64 * 1024


# How long a client has to learn that the connection closes before the streams that it opens are refused.
_LEAVE_SECONDS = 1.0
_LEAVE_SECONDS_IF_IDLE = 0.05

# Reads that follow each other this closely are a burst: what they bring for another connection is written together.
_BURST_SECONDS = 20e-6


class _Reads:
    """The reads of one event loop's transports, and the other transports for which they have brought output."""

    __slots__ = ("are_single", "ended_at", "others", "relayed")

    def __init__(self) -> None:
        self.are_single = (
            False  # the read under way is not part of a burst: others need not wait for the end of the turn
        )
        self.ended_at = 0.0  # when the output of the last one was written, by `time.monotonic`
        self.others: list[Http2Transport] = []
        self.relayed: list[Http2Transport] = []  # those for which it has brought relayed messages

    def flush_others(self) -> None:
        """Write the output of the others."""
        others, self.others = self.others, []
        self._flush(others)
        self.ended_at = monotonic()

    def flush_relayed(self) -> None:
        """Write relayed messages."""
        relayed, self.relayed = self.relayed, []
        self._flush(relayed)

    def _flush(self, transports: list[Http2Transport]) -> None:
        for each in transports:
            http2, transport = each.http2, each._transport
            out = http2.out
            if len(out) == 1 and not http2.is_blocked:  # the usual case: one message each
                http2.out = []
                transport.write(out[0])
            else:
                each.flush()


_reads_of: WeakKeyDictionary[asyncio.AbstractEventLoop, _Reads] = WeakKeyDictionary()


class Http2Transport(asyncio.Protocol):
    """One socket with HTTP/2 on it.

    The output that a read causes on this connection is written at the end of the read. So is that on other connections
    where reads come one by one; in a burst of reads it is written once a turn of the event loop. Relayed messages of
    streams do not wait for that.
    """

    __slots__ = ("_is_feeding", "_loop", "_reads", "_transport", "_unasked_bytes", "http2", "read_at")

    def __init__(self, limits: Http2Limits, *, is_client: bool, own_names: OwnNames | None = None) -> None:
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._loop = asyncio.get_running_loop()
        self._reads = _reads_of.setdefault(self._loop, _Reads())
        self._is_feeding = False
        self._unasked_bytes = 0  # written while the peer does not read
        self.read_at = 0.0  # when the peer has sent anything, by `time.monotonic`
        self.http2 = Http2Connection(self, limits, is_client=is_client, own_names=own_names)

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        is_tls = transport.get_extra_info("sslcontext") is not None
        # Zero: what the kernel does not take at once pauses writing. Under TLS a mark of zero would pause for ever.
        self._transport.set_write_buffer_limits(high=_JOIN_BYTES if is_tls else 0)
        self.read_at = monotonic()
        self.http2.start()

    def data_received(self, data: bytes) -> None:
        reads = self._reads
        reads.are_single = monotonic() - reads.ended_at > _BURST_SECONDS
        self._is_feeding = True
        try:
            self.http2.feed(data)
        finally:
            self._is_feeding = False
            if self.http2.out:
                self.flush()
            if reads.relayed:
                reads.flush_relayed()
            if reads.are_single:
                reads.are_single = False
                if reads.others:
                    reads.flush_others()
            reads.ended_at = self.read_at = monotonic()
        if self.http2.failed is not None:
            self.close()
        elif len(data) >= TURN_BYTES:
            self._yield_turn()

    def _yield_turn(self) -> None:
        """Let others have a turn: the transport reads a socket until it is empty."""
        if not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.http2.is_blocked = True

    def resume_writing(self) -> None:
        self._unasked_bytes = 0
        if not self._transport.is_closing():
            self.http2.unblock()

    def connection_lost(self, exc: Exception | None) -> None:
        self.http2.is_blocked = True
        self.http2.lose("the connection was lost")

    # Called by the HTTP/2 connection

    def has_output(self) -> None:
        if self._is_feeding:
            return
        reads = self._reads
        reads.others.append(self)
        if not reads.are_single and len(reads.others) == 1:
            self._loop.call_soon(reads.flush_others)  # one for all of them

    def has_relayed(self) -> None:
        if not self._is_feeding:
            self._reads.relayed.append(self)

    def stream_opened(self, stream: Stream, block: Block, ended: bool) -> None:
        """The peer has sent a request; only clients do."""

    def stream_closed(self) -> None:
        """A stream has ended: another one may be opened."""

    def settings_changed(self) -> None:
        """The peer has changed its limit of streams."""

    def peer_is_leaving(self) -> None:
        """The peer takes no new streams."""

    # Writing

    def flush(self) -> None:
        """Write the output."""
        out = self.http2.out
        if not out:
            return
        if self._transport.is_closing():
            out.clear()
            return
        if self.http2.is_blocked:  # streams send nothing now: these are acknowledgements
            self._unasked_bytes += sum(map(len, out))
            if self._unasked_bytes > _MAX_UNSENT_BYTES:
                self.abort()
                return
        if len(out) == 1:
            self._transport.write(out[0])
        elif len(out) < 8 or sum(map(len, out)) < _JOIN_BYTES:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self.http2.out = []

    def close(self) -> None:
        """Close once everything is written."""
        self.flush()
        self.http2.is_blocked = True
        self._transport.close()

    def abort(self) -> None:
        self.http2.is_blocked = True
        self._transport.abort()

    @property
    def is_closing(self) -> bool:
        return self._transport.is_closing()


class Http2Timeouts(NamedTuple):
    """Seconds that a client has; None: no limit."""

    opening: float  # to send its preface and SETTINGS
    read: float | None  # to read some of what is written
    idle: float | None  # without a stream


class Http2Server(Http2Transport):
    """The server side of a connection: it sweeps clients that take too long, and drains."""

    __slots__ = ("_connected_at", "_idle_since", "_is_draining", "_timeouts", "_unsent", "_unsent_since")

    def __init__(self, limits: Http2Limits, timeouts: Http2Timeouts, own_names: OwnNames) -> None:
        super().__init__(limits, is_client=False, own_names=own_names)
        self._timeouts = timeouts
        self._is_draining = False
        self._connected_at = self._idle_since = monotonic()
        self._unsent, self._unsent_since = 0, 0.0  # at the last sweep

    def stream_closed(self) -> None:
        if not self.http2.streams:
            self._idle_since = 0.0  # the next sweep sets it
            if self._is_draining:
                self._loop.call_soon(self._close_if_idle)

    def call_ended(self, stream: Stream) -> None:
        """The reply is sent or buffered; what the client still sends is not read."""
        if stream.is_sent and stream.peer_state is not ENDED:
            stream.reset(ErrorCode.NO_ERROR)

    def drain(self) -> None:
        """Send GOAWAY, and close once the streams under way have ended (RFC 9113 section 6.8)."""
        if not self._is_draining:
            self._is_draining = True
            self.http2.leave(last_id=MAX_WINDOW)
            self._loop.call_later(_LEAVE_SECONDS if self.http2.streams else _LEAVE_SECONDS_IF_IDLE, self._leave)

    def _leave(self) -> None:
        if not self._transport.is_closing():
            self.http2.leave()
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self.http2.streams and not self._transport.is_closing():
            self.close()

    def sweep(self, now: float) -> None:
        """Called about once a second; `now` is of `time.monotonic`."""
        http2, timeouts = self.http2, self._timeouts
        http2.tick()
        if http2.streams or not self._idle_since:
            self._idle_since = now
        self._sweep_unsent(now)
        if http2.opening is not Opening.DONE:
            if now - self._connected_at > timeouts.opening:
                self.abort()
        elif timeouts.idle is not None and now - self._idle_since > timeouts.idle:
            self.drain()

    def _sweep_unsent(self, now: float) -> None:
        transport = self._transport
        unsent = transport.get_write_buffer_size() if self.http2.is_blocked or transport.is_closing() else 0
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif has_hung_up(transport) or (self._timeouts.read and now - self._unsent_since > self._timeouts.read):
            self.abort()
