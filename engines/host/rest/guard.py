"""What a REST client may make the server wait for: uvicorn itself waits for ever, and keeps headers without end.

Nothing of it is done for each request but one addition: connections are looked at about once a second.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# As much as Triton's own front (libevhtp) takes of a request's line and headers, within a factor of two.
MAX_HEAD_BYTES = 64 * 1024

_TOO_LATE = b"408 Request Timeout", b'{"error":"the request did not come in time"}'
_TOO_LONG = b"431 Request Header Fields Too Large", b'{"error":"the request has too many or too long headers"}'


class GuardedProtocol(HttpToolsProtocol):
    """A connection that is not served for ever."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        super().__init__(*args, **fields)
        self._unchecked_bytes = 0
        self._num_bytes = 0
        self._long_head: Any = None  # the request whose head was not whole at the last check
        self._awaited: Any = None  # what the last sweep has found it to wait for
        self._awaited_since = 0.0

    def data_received(self, data: bytes) -> None:
        self._unchecked_bytes += len(data)
        super().data_received(data)
        if self._unchecked_bytes > MAX_HEAD_BYTES:
            self._check_head()

    def sweep(self, now: float, receive_seconds: float | None, send_seconds: float | None) -> None:
        """End it where its client has neither sent nor taken what is its turn to, for so long."""
        self._num_bytes, self._unchecked_bytes = self._num_bytes + self._unchecked_bytes, 0
        awaited, limit = self._find_awaited(), receive_seconds
        if awaited is None and self.flow is not None and self.flow.write_paused:
            awaited, limit = ("reading", self.transport.get_write_buffer_size()), send_seconds
        if awaited is None or awaited != self._awaited:
            self._awaited, self._awaited_since = awaited, now
        elif limit is not None and now - self._awaited_since > limit and not self.transport.is_closing():
            if awaited[0] == "reading":
                self.transport.abort()
            else:
                self._refuse(*_TOO_LATE)

    def _find_awaited(self) -> tuple[str, int] | None:
        """Which part of a request the client owes, and what of it has come; None where it owes nothing."""
        cycle = self.cycle
        is_answered = cycle is None or cycle.response_complete
        if is_answered and self._is_in_head:
            return "head", id(self.scope)  # as a whole: a byte now and then buys no time
        if cycle is not None and cycle.more_body and not (self.flow is not None and self.flow.read_paused):
            return "body", self._num_bytes
        if is_answered and self.timeout_keep_alive_task is None:
            return "head", 0  # it has sent nothing yet, or nothing that begins a request
        return None

    @property
    def _is_in_head(self) -> bool:
        """Whether a request has begun whose head is not whole."""
        return self.scope is not None and (self.cycle is None or self.cycle.scope is not self.scope)

    def _check_head(self) -> None:
        """Called whenever as much has come as a head may have."""
        self._num_bytes, self._unchecked_bytes = self._num_bytes + self._unchecked_bytes, 0
        head = self.scope if self._is_in_head else None
        if head is not None and head is self._long_head and not self.transport.is_closing():
            self._refuse(*_TOO_LONG)
        self._long_head = head

    def _refuse(self, status: bytes, body: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            self.transport.write(head % (status, len(body)) + body)
        self.transport.close()


class Connections(Protocol):
    """What a uvicorn server knows of its connections."""

    connections: set[Any]


def sweep(state: Connections, now: float, receive_seconds: float | None, send_seconds: float | None) -> None:
    """Called about once a second."""
    for connection in list(state.connections):
        cast(GuardedProtocol, connection).sweep(now, receive_seconds, send_seconds)
