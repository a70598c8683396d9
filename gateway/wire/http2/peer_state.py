"""The peer's half of a stream, and the errors of what it may not send, as a table (RFC 9113 sections 5.1 and 8.1).

    SILENT  -- FIELDS -->                SENDING
    SILENT  -- FIELDS_END -->            ENDED
    SENDING -- DATA_END, FIELDS_END -->  ENDED

INTERIM in SILENT and DATA in SENDING change nothing.
This side's half needs none: it sends, or has sent all (`Stream.is_sent`).
"""

from __future__ import annotations

from enum import Enum

from gateway.wire.http2.frames import ErrorCode


class PeerState(Enum):
    SILENT = "no header fields have come"
    SENDING = "data and trailers may follow"
    ENDED = "all has come, or the stream is over"


class PeerEvent(Enum):
    """What it sends; `..._END` has the flag END_STREAM. Fields after the first ones are trailers."""

    INTERIM = "a reply with a status of 1xx"
    INTERIM_END = "the same, with the end"
    FIELDS = "header fields"
    FIELDS_END = "header fields, with the end"
    DATA = "data"
    DATA_END = "data, with the end"


_EARLY_DATA = ErrorCode.PROTOCOL_ERROR, "DATA before the header fields"
_LATE_DATA = ErrorCode.STREAM_CLOSED, "DATA after the end of the stream"
_LATE_FIELDS = ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream"
# Errors of the stream. Whatever else comes is a step of the diagram, which its reader takes without a look-up.
FAULTS: dict[tuple[PeerState, PeerEvent], tuple[ErrorCode, str]] = {
    (PeerState.SILENT, PeerEvent.INTERIM_END): (ErrorCode.PROTOCOL_ERROR, "an interim reply ends the stream"),
    (PeerState.SILENT, PeerEvent.DATA): _EARLY_DATA,
    (PeerState.SILENT, PeerEvent.DATA_END): _EARLY_DATA,
    (PeerState.SENDING, PeerEvent.FIELDS): (ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream"),
    (PeerState.ENDED, PeerEvent.FIELDS): _LATE_FIELDS,
    (PeerState.ENDED, PeerEvent.FIELDS_END): _LATE_FIELDS,
    (PeerState.ENDED, PeerEvent.DATA): _LATE_DATA,
    (PeerState.ENDED, PeerEvent.DATA_END): _LATE_DATA,
}
