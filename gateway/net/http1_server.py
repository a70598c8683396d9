"""The server side of an HTTP/1.1 connection: bytes in, requests one after another, replies out in the same order.

Source: RFC 9112.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from enum import Enum
from time import monotonic
from typing import cast

from gateway.net.sockets import TURN_BYTES, has_hung_up, unacknowledged_bytes
from gateway.net.transfer_rate import TransferRate
from gateway.wire.http1.body import BodyReader
from gateway.wire.http1.head import HEAD_END

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

# A connection is read on after its last reply while the client still sends: until it has been silent for the first
# time, or for the second in all. Closing under a client that writes resets the connection, and may destroy the reply
# before it is read; most clients read nothing before they have sent their body.
_LINGER_SECONDS = 2.0
_LINGER_SECONDS_IN_ALL = 30.0
# How long an idle connection stays open when the server drains: a request that is on its way is answered, with
# `connection: close`; closing at once would look like a crash to its client.
_DRAIN_SECONDS = 0.25


class ParserState(Enum):
    """What the next bytes are."""

    HEAD = "a request's head"
    BODY = "a request's body"
    REPLY = "the next request, while this one is answered"
    LINGER = "dropped: the client reads the last reply"


# An attribute of an Enum costs a call in Python 3.11; these are read several times per request.
_HEAD, _BODY, _REPLY, _LINGER = ParserState


class Owed(Enum):
    """What the client has to do next; `Http1Server._seconds` is how long it may take."""

    FIRST_HEAD = "send the first byte of the connection"
    NEXT_HEAD = "send another request"
    HEAD = "send the rest of a head"  # as a whole: a byte now and then does not extend the time
    BODY = "send more of a body"
    READ = "read what is written"
    CLOSE = "close, or stop sending"


class Rejection(Enum):
    """Why a request cannot be read on; the next request cannot be found, so the connection closes after the reply."""

    HEAD_TOO_LONG = "head too long"
    BODY_TOO_LONG = "body too long"
    MALFORMED = "malformed"
    HEAD_TIMEOUT = "head timeout"
    BODY_TIMEOUT = "body timeout"
    BODY_TOO_SLOW = "body too slow"


_REJECTION_OF_TIMEOUT = {Owed.HEAD: Rejection.HEAD_TIMEOUT, Owed.BODY: Rejection.BODY_TIMEOUT}


class Http1Server(asyncio.Protocol):
    """HTTP/1.1 with keep-alive and pipelining: a request that comes early waits until those before it are answered.

    A front derives from it. It gets each head in `_head_received`, where it answers a request that is complete, or
    calls `_begin_body` and then gets the body in `_body_received`. It calls `_end_reply` after each reply.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_closes_after_reply",
        "_expects_continue",
        "_has_eof",
        "_is_reading",
        "_lingers_until",
        "_max_body_bytes",
        "_max_head_bytes",
        "_num_reads",
        "_num_requests",
        "_owed",
        "_owed_since",
        "_rate",
        "_state",
        "_transport",
        "is_paused",
        "loop",
    )

    # Whether the rest of a body is read and dropped after the reply; otherwise the connection closes.
    _skips_bodies = False

    def __init__(self, loop: asyncio.AbstractEventLoop, max_head_bytes: int, max_body_bytes: float) -> None:
        self.loop = loop
        self._max_head_bytes = max_head_bytes
        self._max_body_bytes = max_body_bytes
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)  # set before anything else happens
        self._state = _HEAD
        self._buffer = b""  # an incomplete head, or requests that wait
        self._body = BodyReader(0)  # another with each state BODY
        self._expects_continue = False
        self._closes_after_reply = False
        self._is_reading = True
        self._has_eof = False  # the client sends no more, and requests before that are still answered
        self.is_paused = False  # the client does not read
        self._num_requests = self._num_reads = 0  # heads; pieces of bodies
        self._owed: tuple[Owed, int] | None = None  # at the last sweep: what, and a figure that grows with progress
        self._owed_since = 0.0
        self._rate: TransferRate | None = None  # of the body that comes, or the reply that is read
        self._lingers_until = 0.0

    # Called by the event loop

    def data_received(self, data: bytes) -> None:
        if len(data) >= TURN_BYTES:
            self._yield_turn()
        state = self._state
        if state is _HEAD and not self.is_paused:
            self._read_head(self._buffer + data if self._buffer else data)
        elif state is _BODY:
            self._read_body(data)
        elif state is _LINGER:
            self._num_reads += 1
        else:  # it waits until the reply before it is written, and most of that read
            self._buffer += data
            if len(self._buffer) > self._max_head_bytes:
                self._set_reading(False)

    def _yield_turn(self) -> None:
        """Let others have a turn: the transport reads a socket until it is empty."""
        if self._is_reading and not self._transport.is_closing():
            self._transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._is_reading and not self._transport.is_closing():
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        if self._state is _HEAD and self._buffer:
            self._set_reading(True)
            self.loop.call_soon(self._read_waiting)

    # What a front implements

    @abstractmethod
    def _head_received(self, head: bytes, body: bytes) -> None:
        """A head is complete; `body` is what has come after it."""

    @abstractmethod
    def _body_received(self, data: bytes, ended: bool) -> None:
        """Some of the body. With `ended` the state is REPLY already."""

    @abstractmethod
    def _reject(self, rejection: Rejection, detail: str = "") -> None:
        """Answer what cannot be read on. `detail` says what is malformed."""

    @abstractmethod
    def _seconds(self, owed: Owed) -> float | None:
        """How long the client may take without progress; None for no limit. Never of CLOSE."""

    # Reading requests

    def _read_head(self, data: bytes) -> None:
        """Read the next request, or keep the part of its head that has come."""
        end = data.find(HEAD_END) + 4
        if end < 4 or end > self._max_head_bytes:
            self._read_incomplete_head(data)
            return
        self._num_requests += 1
        self._head_received(data[:end], data[end:])

    def _read_incomplete_head(self, data: bytes) -> None:
        stripped = data.lstrip(b"\r\n")  # empty lines before a request are ignored (RFC 9112 section 2.2)
        if len(stripped) > self._max_head_bytes:
            self._reject(Rejection.HEAD_TOO_LONG)
        elif stripped.count(b"\n") != stripped.count(b"\r\n"):  # its end would never be found
            self._reject(Rejection.MALFORMED, "a line ends with a bare LF")
        else:
            self._buffer = stripped

    def _begin_body(self, length: int | None, *, expects_continue: bool) -> None:
        """A body follows, of this length or, where that is None, chunked."""
        self._state = _BODY
        self._buffer = b""
        self._body = BodyReader(length)
        self._expects_continue = expects_continue

    def _read_body(self, data: bytes) -> None:
        self._num_reads += 1
        body = self._body
        try:
            data = body.feed(data)
        except ValueError as error:
            self._reject(Rejection.MALFORMED, str(error))
            return
        if body.num_bytes > self._max_body_bytes:
            self._reject(Rejection.BODY_TOO_LONG)
            return
        ended = body.has_ended
        if ended:
            self._state = _REPLY
            self._buffer = body.rest
            self._expects_continue = False
            self._set_reading(True)
        self._body_received(data, ended)

    def _read_waiting(self) -> None:
        """Read what came while the last request was answered."""
        if self._state is _HEAD and self._buffer and not self.is_paused and not self._transport.is_closing():
            data, self._buffer = self._buffer, b""
            self._read_head(data)
            if self._has_eof and not self._answers_half_closed():
                self._transport.close()

    def _answers_half_closed(self) -> bool:
        """The client sends no more, and may read on: whether what it has sent is answered. Asked again for each request
        that waits; a front that returns True from `eof_received` overrides it."""
        return False

    # Called while a request is answered

    def expect_body(self) -> None:
        """The body will be read: send 100 Continue where the client waits for it."""
        if self._expects_continue:
            self._expects_continue = False
            self._transport.write(CONTINUE)

    def pause_body(self) -> None:
        if self._state is _BODY:
            self._set_reading(False)

    def resume_body(self) -> None:
        if self._state is _BODY:
            self._set_reading(True)

    def close_after_reply(self) -> None:
        self._closes_after_reply = True

    def _end_reply(self) -> None:
        """The reply is written: go on with the next request, the rest of this one's body, or close."""
        state = self._state
        if self._closes_after_reply or (state is _BODY and not self._skips_bodies):
            self._close_gently()
        elif state is _BODY:
            self._set_reading(True)
        else:
            self._state = _HEAD
            if self._buffer:
                self._set_reading(True)
                self.loop.call_soon(self._read_waiting)

    # Closing

    def drain(self) -> None:
        """Close after the reply under way, or else after the next one, where that comes soon. A reply whose head is
        written has not announced the end: its client may send on at once."""
        if self._has_begun_reply():
            self.loop.call_later(_DRAIN_SECONDS, self.drain)
        else:
            self.close_after_reply()
            self.loop.call_later(_DRAIN_SECONDS, self._close_if_idle)

    def _has_begun_reply(self) -> bool:
        return False

    def _close_if_idle(self) -> None:
        if self._state is _HEAD and not self._buffer:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Called about once a second: end the connection where the client takes too long for what it owes."""
        if not self._is_reading and has_hung_up(self._transport):
            self._transport.abort()
            return
        owed = self._find_owed()
        if owed is None or owed != self._owed:
            self._owed, self._owed_since = owed, now
        else:
            seconds = _LINGER_SECONDS if owed[0] is Owed.CLOSE else self._seconds(owed[0])
            if seconds is not None and now - self._owed_since > seconds:
                self._time_out(owed[0])
        if self._state is _LINGER and now > self._lingers_until:
            self._transport.abort()
        elif owed is not None and owed[0] in (Owed.BODY, Owed.READ):
            self._check_rate(owed, now)
        else:
            self._rate = None

    def _least_rate(self) -> int:
        """The bytes a second that a client must send or read; 0: any."""
        return 0

    def _check_rate(self, owed: tuple[Owed, int], now: float) -> None:
        what = owed[0]
        subject: object = what
        if what is Owed.BODY:
            subject, left = self._body, -self._body.num_bytes
        else:
            waiting = unacknowledged_bytes(self._transport)
            if waiting is None:
                return
            left = owed[1] + waiting
        rate = self._rate
        if rate is None or rate.subject is not subject or self._expects_continue:
            self._rate = TransferRate(subject, left, now)
        elif rate.is_below(self._least_rate(), left, now):
            self._rate = None
            if what is Owed.BODY:
                self._reject(Rejection.BODY_TOO_SLOW)
            else:
                self._transport.abort()

    def _find_owed(self) -> tuple[Owed, int] | None:
        state, transport = self._state, self._transport
        unsent = transport.get_write_buffer_size()
        if self.is_paused or (unsent and (state is _LINGER or transport.is_closing())):
            return Owed.READ, unsent
        if state is _LINGER:
            return Owed.CLOSE, self._num_reads
        if state is _HEAD:
            if self._buffer:
                return Owed.HEAD, self._num_requests
            return Owed.NEXT_HEAD if self._num_requests else Owed.FIRST_HEAD, self._num_requests
        if state is _BODY and self._is_reading:
            return Owed.BODY, self._num_reads
        return None

    def _time_out(self, owed: Owed) -> None:
        rejection = _REJECTION_OF_TIMEOUT.get(owed)
        if rejection is not None:
            self._reject(rejection)
        elif owed in (Owed.READ, Owed.CLOSE):
            self._transport.abort()
        else:
            self._transport.close()

    def _close_gently(self) -> None:
        """Close; where the client still sends, read on for a moment."""
        if self._state is not _BODY and not self._buffer:
            self._transport.close()
            return
        self._state = _LINGER
        self._buffer = b""
        self._lingers_until = monotonic() + _LINGER_SECONDS_IN_ALL
        self._set_reading(True)
        if self._transport.can_write_eof():
            try:
                self._transport.write_eof()
            except OSError:  # asyncio's own loop: the client has reset the connection, and the loop has not seen it
                self._transport.abort()

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._transport.is_closing():
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
