"""Server-sent events: bytes in, each event's data out.

Source: WHATWG HTML, "Server-sent events"; Triton writes `data: {json}` and an empty line.
"""

from __future__ import annotations

from gateway.protocol.errors import ErrorKind, GatewayError

# An event holds one reply of a model, which for some models is a tensor.
MAX_EVENT_BYTES = 64 * 1024 * 1024


class SseReader:
    """Splits a stream that may be cut anywhere into the data of its events. A line ends with LF or CRLF. Of an event
    only `data` counts; the lines of one are joined with LF."""

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_event_bytes = max_event_bytes
        self._line = bytearray()  # the begin of a line whose end has not come
        self._data: list[bytes] = []  # of the event whose end has not come
        self._num_bytes = 0  # in `_data`

    @property
    def num_waiting(self) -> int:
        """Bytes of an event whose end has not come: more than none when a stream ends is one that was cut off."""
        return len(self._line) + self._num_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """The events that end in these bytes. Raises: GatewayError(UPSTREAM_PROTOCOL) where one is longer than the
        limit."""
        events: list[bytes] = []
        at = 0
        while (stop := data.find(b"\n", at)) >= 0:
            line = data[at:stop]
            if self._line:
                line, self._line = bytes(self._line + line), bytearray()
            event = self._end_line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
            at = stop + 1
        self._line += memoryview(data)[at:]
        self._check()
        return events

    def _end_line(self, line: bytes) -> bytes | None:
        """The event that an empty line ends."""
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data, self._num_bytes = [], 0
            return event
        if line.startswith(b"data:"):
            value = line[5:].removeprefix(b" ")
            self._data.append(value)
            self._num_bytes += len(value)
            self._check()
        elif line == b"data":
            self._data.append(b"")
        return None

    def _check(self) -> None:
        if self.num_waiting > self._max_event_bytes:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"an event is longer than {self._max_event_bytes} bytes")


def event_of(data: bytes) -> bytes:
    """The event with one line of data, as Triton writes it."""
    return b"data: " + data + b"\n\n"
