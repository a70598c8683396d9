"""HTTP without a client library: the bytes that a server answers to bytes."""

import http.client
import io
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, cast

TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Reply:
    """One reply: header names in lower case, the body without transfer coding but otherwise unchanged."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


def send(
    port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> Reply:
    """Send one request on a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request(method, path, body, dict(headers or {}))
        return to_reply(connection.getresponse())
    finally:
        connection.close()


class Wire:
    """One connection that sends bytes unchanged and reads replies one by one."""

    def __init__(self, port: int):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._stream = self._socket.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def half_close(self) -> None:
        """Send nothing more, and read on."""
        self._socket.shutdown(socket.SHUT_WR)

    def read_line(self) -> bytes:
        return self._stream.readline()

    def read_reply(self, method: str = "POST") -> Reply:
        """Read the next final reply; the request's method determines whether it has a body."""
        response = http.client.HTTPResponse(cast(socket.socket, self), method=method)
        response.begin()
        return to_reply(response)

    def is_closed_by_server(self) -> bool:
        """Wait for the server to close the connection. Returns whether it sent nothing before."""
        return self._stream.read() == b""

    def makefile(self, mode: str) -> io.BufferedIOBase:
        """Lend the stream to one HTTPResponse, which closes its stream at the end of a body."""
        return Unclosed(self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._socket.close()


class Unclosed(io.BufferedReader):
    """A stream for a borrower, whose `close` leaves it open for the next one."""

    def __init__(self, stream: io.BufferedReader):
        self._lent = stream

    def read(self, size: int | None = -1) -> bytes:
        return self._lent.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self._lent.readline(size)

    def readinto(self, buffer: memoryview) -> int:
        return self._lent.readinto(buffer)

    def close(self) -> None:
        pass


def to_reply(response: http.client.HTTPResponse) -> Reply:
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, response.reason, headers, response.read())
