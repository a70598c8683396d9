"""gRPC's statuses, timeouts and messages as they stand in header fields.

Source: gRPC over HTTP2 (grpc/grpc `doc/PROTOCOL-HTTP2.md`), google/rpc/code.proto for the HTTP statuses.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

_HTTP: tuple[int, ...] = (200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401)

_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_UNITS: tuple[tuple[bytes, float], ...] = (
    (b"n", 1e-9),
    (b"u", 1e-6),
    (b"m", 1e-3),
    (b"S", 1.0),
    (b"M", 60.0),
    (b"H", 3600.0),
)
_MAX_DIGITS = 100_000_000
_MAX_MESSAGE_BYTES = 7000
_CUT_ESCAPE = re.compile(rb"%.?\Z")


def http_status(code: int) -> int:
    """The HTTP status that a gRPC status stands beside in counters and logs."""
    return _HTTP[code] if 0 <= code < len(_HTTP) else 500


def read_status(value: bytes | None) -> int:
    """A `grpc-status` field; UNKNOWN where it is missing or no number, as clients read it."""
    return int(value) if value is not None and value.isdigit() and len(value) < 4 else UNKNOWN


def read_timeout(value: bytes) -> float | None:
    """A `grpc-timeout` in seconds; None where it is malformed."""
    number, unit = value[:-1], _SECONDS.get(value[-1:])
    return int(number) * unit if unit is not None and number.isdigit() and len(number) <= 8 else None


def write_timeout(seconds: float) -> bytes:
    """A `grpc-timeout`, rounded down in the finest unit that holds it; at least one nanosecond."""
    if 0.1 <= seconds < 99.0:  # as nearly all are
        return b"%du" % int(seconds * 1e6)
    for unit, worth in _UNITS:
        number = int(seconds / worth)
        if number < _MAX_DIGITS:
            return b"%d%b" % (max(number, 1), unit)
    return b"99999999H"


def write_message(text: str) -> bytes:
    """A `grpc-message`: UTF-8, percent-encoded but for printable ASCII. The rest of a long text is left out:
    clients refuse metadata of more than 8 to 16 KiB."""
    written = b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte
        for byte in text[: _MAX_MESSAGE_BYTES + 1].encode("utf-8")
    )
    if len(written) > _MAX_MESSAGE_BYTES:
        written = _CUT_ESCAPE.sub(b"", written[: _MAX_MESSAGE_BYTES - 3]) + b"..."
    return written.strip()


def read_message(value: bytes | None) -> str:
    """A `grpc-message` as text; what is malformed in it stays as it is."""
    return unquote_to_bytes(value or b"").decode("utf-8", "replace")
