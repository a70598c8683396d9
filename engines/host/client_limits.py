"""What clients may use, and which of their headers models get."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """What clients may use up, and what of their headers reaches models (both patterns match anywhere in a name).

    Bytes and seconds; None means no limit.
    """

    max_body_bytes: int = 64 * _MEBIBYTE  # REST, decompressed too
    max_message_bytes: int = 2**31 - 1  # gRPC, decompressed too
    rest_header_pattern: str = ""
    grpc_header_pattern: str = ""
    max_streams: int = 1000  # of one HTTP/2 connection, at the same time
    window_bytes: int = _MEBIBYTE  # of one HTTP/2 stream
    max_calls_of_stream: int = 1024  # a ModelStreamInfer that has more under way is not read for the time being
    max_unsent_bytes: int = (
        256 * _MEBIBYTE
    )  # of one stream of answers whose client does not read; then it is broken off
    compression_level: int | None = None  # zlib's, of gRPC replies; None sends them as they are
    keepalive_seconds: float | None = 7200.0  # a silent gRPC connection is pinged after so long
    keepalive_timeout_seconds: float = 20.0  # and given up where nothing comes back
    receive_seconds: float | None = 60.0  # a request that is not whole: without a byte of it, or of its head at all
    send_seconds: float | None = 60.0  # a client that takes nothing of what waits for it
    max_connection_seconds: float | None = None
    max_idle_seconds: float | None = None
    disconnect_seconds: float = 0.05  # a REST call that takes longer watches whether its client is still there

    def __post_init__(self) -> None:
        """Raises: ValueError where a pattern is none."""
        for front in ("rest", "grpc"):
            self.forwards(front)

    def forwards(self, front: str) -> HeaderForward:
        return HeaderForward(self.rest_header_pattern if front == "rest" else self.grpc_header_pattern)


@dataclass(frozen=True, slots=True)
class HeaderForward:
    """Which headers become parameters of an inference. HTTP's names have no case, and come in lower case."""

    pattern: str
    _regex: re.Pattern[str] | None = field(init=False)

    def __post_init__(self) -> None:
        try:
            regex = re.compile(self.pattern, re.IGNORECASE) if self.pattern else None
        except re.error as error:
            raise ValueError(f"'{self.pattern}' is no regular expression: {error}") from error
        object.__setattr__(self, "_regex", regex)

    def __bool__(self) -> bool:
        return self._regex is not None

    def matches(self, name: bytes) -> bool:
        return self._regex is not None and self._regex.search(name.decode("latin-1")) is not None

    def parameters(self, fields: Sequence[tuple[bytes, bytes]]) -> dict[str, str]:
        """The fields that are forwarded, by name."""
        if self._regex is None:
            return {}
        return {
            name.decode("latin-1"): value.decode("utf-8", "replace") for name, value in fields if self.matches(name)
        }
