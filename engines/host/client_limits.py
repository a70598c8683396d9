"""Limits of clients, and the headers that models get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engines.host.re2_pattern import compile_re2

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of clients, in bytes and seconds (None: no limit), and patterns of the headers that models get.

    A pattern has RE2's syntax and matches anywhere in a header's name, in any case unless it begins with `(?-i)`.
    """

    max_body_bytes: int = 64 * _MEBIBYTE  # REST, decompressed too
    max_message_bytes: int = 2**31 - 1  # gRPC, decompressed too
    rest_header_pattern: str = ""
    grpc_header_pattern: str = ""
    max_streams: int = 1000  # of one HTTP/2 connection, at the same time
    window_bytes: int = _MEBIBYTE  # of one HTTP/2 stream
    max_calls_of_stream: int = 1024  # in flight on one ModelStreamInfer; more are not read
    # Of one stream of responses whose client does not read; then the stream is aborted.
    max_unsent_bytes: int = 256 * _MEBIBYTE
    compression_level: int | None = None  # zlib's, of gRPC replies; None sends them as they are
    keepalive_seconds: float | None = 7200.0  # after this silence a gRPC connection is pinged
    keepalive_timeout_seconds: float = 20.0  # without an answer the connection is closed
    receive_seconds: float | None = 60.0  # for the next byte of a body, or for a complete head
    send_seconds: float | None = 60.0  # for the client to read more of what waits
    # For the reply to a client that has closed its half of the connection: it may have gone.
    half_close_seconds: float | None = 5.0
    max_connection_seconds: float | None = None
    max_idle_seconds: float | None = None

    def __post_init__(self) -> None:
        """Raises: ValueError for an invalid pattern."""
        for front in ("rest", "grpc"):
            self.forwards(front)

    def forwards(self, front: str) -> HeaderForward:
        return HeaderForward(self.rest_header_pattern if front == "rest" else self.grpc_header_pattern)


class HeaderForward:
    """The headers that become parameters of an inference, under their names as the client wrote them."""

    def __init__(self, pattern: str) -> None:
        """Raises: ValueError for an invalid pattern."""
        self._regex = compile_re2(pattern, ignores_case=True) if pattern else None

    def __bool__(self) -> bool:
        return self._regex is not None

    def matches(self, name: bytes) -> bool:
        return self._regex is not None and self._regex.search(name.decode("latin-1")) is not None

    def parameters(self, fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
        return {
            name.decode("latin-1"): value.decode("utf-8", "replace") for name, value in fields if self.matches(name)
        }

    def parameters_of_head(self, head: bytes) -> dict[str, str]:
        """Those of a complete HTTP/1.1 head, with its request line. Blanks at the end of a value stay, as in Triton."""
        lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
        return self.parameters([(name, value.lstrip(b" \t")) for name, colon, value in lines if colon])
