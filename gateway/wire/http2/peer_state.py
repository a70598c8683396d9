"""The peer's half of a stream, and the errors of what it may not send, as a table (RFC 9113 sections 5.1 and 8.1).

    SILENT  -- FIELDS -->                             SENDING
    SILENT  -- FIELDS_END -->                         ENDED
    SENDING -- DATA with the end, or FIELDS_END -->   ENDED

This side's half needs none: it sends, or has sent all (`Stream.is_sent`).
"""

from __future__ import annotations

from enum import Enum

from gateway.wire.http2.frames import ErrorCode


class PeerState(Enum):
    SILENT = "no header fields have come"
    SENDING = "data and trailers may follow"
    ENDED = "all has come, or the stream is over"


# An attribute of an Enum costs a call in Python 3.11; these are read several times per frame.
SILENT, SENDING, ENDED = PeerState


class PeerEvent(Enum):
    INTERIM_END = "a reply with a status of 1xx that ends the stream"
    FIELDS = "header fields; after the first ones these are trailers"
    FIELDS_END = "header fields that end the stream"
    DATA = "data"


# Errors of the stream. Whatever else comes is a step of the diagram, which its reader takes without a look-up.
FAULTS = {
    (PeerState.SILENT, PeerEvent.INTERIM_END): (ErrorCode.PROTOCOL_ERROR, "an interim reply ends the stream"),
    (PeerState.SILENT, PeerEvent.DATA): (ErrorCode.PROTOCOL_ERROR, "DATA before the header fields"),
    (PeerState.SENDING, PeerEvent.FIELDS): (ErrorCode.PROTOCOL_ERROR, "trailers do not end the stream"),
    (PeerState.ENDED, PeerEvent.FIELDS): (ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream"),
    (PeerState.ENDED, PeerEvent.FIELDS_END): (ErrorCode.STREAM_CLOSED, "HEADERS after the end of the stream"),
    (PeerState.ENDED, PeerEvent.DATA): (ErrorCode.STREAM_CLOSED, "DATA after the end of the stream"),
}
