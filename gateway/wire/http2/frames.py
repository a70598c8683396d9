"""Frames as bytes: their types, flags and error codes, and how each is written (RFC 9113 sections 4 and 6)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9

DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

DEFAULT_WINDOW = 65_535
MAX_WINDOW = 2**31 - 1
MIN_MAX_FRAME_BYTES = 16_384
MAX_MAX_FRAME_BYTES = 2**24 - 1

# Length (three bytes) and type together, flags, stream (its highest bit is reserved).
HEAD = Struct(">IBI")
# Bound once: looking them up costs half as much as what they do.
pack_head = HEAD.pack
unpack_head = HEAD.unpack_from
STREAM_MASK = 0x7FFFFFFF
_U32 = Struct(">I")
unpack_u32 = _U32.unpack_from
_PAIR = Struct(">HI")


class ErrorCode(IntEnum):
    """RFC 9113 section 7."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


class Setting(IntEnum):
    """RFC 9113 section 6.5.2."""

    HEADER_TABLE_SIZE = 0x1
    ENABLE_PUSH = 0x2
    MAX_CONCURRENT_STREAMS = 0x3
    INITIAL_WINDOW_SIZE = 0x4
    MAX_FRAME_SIZE = 0x5
    MAX_HEADER_LIST_SIZE = 0x6


class Http2Error(Exception):
    """What the other side did wrong, for which the connection ends."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    """The nine bytes before a payload."""
    return pack_head(length << 8 | kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return pack_head(len(payload) << 8 | kind, flags, stream_id) + payload


def long_headers(stream_id: int, block: bytes, *, ended: bool, max_frame_bytes: int) -> bytes:
    """A header block that may be longer than a frame: HEADERS, and as many CONTINUATION frames as it takes."""
    if len(block) <= max_frame_bytes:
        return frame(HEADERS, END_HEADERS | END_STREAM if ended else END_HEADERS, stream_id, block)
    pieces = [block[at : at + max_frame_bytes] for at in range(0, len(block), max_frame_bytes)]
    frames = [frame(HEADERS, END_STREAM if ended else 0, stream_id, pieces[0])]
    frames += [frame(CONTINUATION, 0, stream_id, piece) for piece in pieces[1:-1]]
    frames.append(frame(CONTINUATION, END_HEADERS, stream_id, pieces[-1]))
    return b"".join(frames)


def rst_stream(stream_id: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def goaway(last_stream_id: int, code: int, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, _U32.pack(last_stream_id) + _U32.pack(code) + debug)


def settings(values: Mapping[Setting, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_PAIR.pack(key, value) for key, value in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifier and value, in order. Raises: Http2Error where the length is no multiple of six."""
    if len(payload) % _PAIR.size:
        raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "the length of SETTINGS is no multiple of 6")
    return list(_PAIR.iter_unpack(payload))


def read_u32(payload: bytes) -> int:
    """The first four bytes of a payload."""
    number: int = _U32.unpack_from(payload)[0]
    return number
