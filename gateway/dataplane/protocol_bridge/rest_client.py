"""A REST request that did not come over HTTP/1.1, as its handler sees it: the reply is read back as it is written."""

from __future__ import annotations

from typing import Protocol

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.local_replies import JSON, KEEP_ALIVE_END
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.body import ChunkedDecoder
from gateway.wire.http1.head import CHUNKED, HEAD_END, Field, fields_of, read_response_head


class ReplySink(Protocol):
    """Whoever the reply is for. It ends by `reply_ended`, `refused` or `reply_broken`, once."""

    def reply_started(self, status: int, fields: list[Field]) -> None:
        """The reply's status and end-to-end fields, names in lower case."""
        ...

    def reply_continued(self, data: bytes) -> None: ...

    def reply_ended(self) -> None: ...

    def refused(self, error: GatewayError, fields: list[Field]) -> None:
        """No engine answers; instead of all of the above."""
        ...

    def reply_broken(self) -> None:
        """The reply ends in its middle."""
        ...

    def pause_body(self) -> None:
        """Nobody takes more of the request's body for now."""
        ...

    def resume_body(self) -> None: ...


class RestClient:
    """The client of one request, for a sink; see `seams.Client`."""

    __slots__ = (
        "_decoder",
        "_has_begun",
        "_sink",
        "forwarded_for_line",
        "forwarded_proto_line",
        "is_paused",
        "peer",
        "plane",
        "reply_head_end",
    )

    def __init__(self, plane: DataPlane, sink: ReplySink, peer: str, *, is_tls: bool = False) -> None:
        self.plane = plane
        self.peer = peer
        self.is_paused = False
        self.forwarded_for_line = b"x-forwarded-for: %b\r\n" % peer.encode("ascii", "replace")
        self.forwarded_proto_line = b"x-forwarded-proto: %b\r\n" % (b"https" if is_tls else b"http")
        self.reply_head_end = KEEP_ALIVE_END
        self._sink = sink
        self._has_begun = False
        self._decoder: ChunkedDecoder | None = None

    def write(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            end = data.index(HEAD_END) + len(HEAD_END)  # handlers write a head in one piece
            head = read_response_head(data[:end])
            if head.body == CHUNKED:
                self._decoder = ChunkedDecoder()
            self._sink.reply_started(head.status, head.fields)
            data = data[end:]
        if self._decoder is not None:
            data = self._decoder.feed(data)
        if data:
            self._sink.reply_continued(data)

    def write_at_once(self) -> None:
        """Frames are written once a turn of the event loop, small ones too."""

    def expect_body(self) -> None:
        """Nobody waits for leave to send."""

    def pause_body(self) -> None:
        self._sink.pause_body()

    def resume_body(self) -> None:
        self._sink.resume_body()

    def close_after_reply(self) -> None:
        """The connection serves others."""

    def reply_ended(self) -> None:
        self._sink.reply_ended()

    def respond(self, status: int, body: bytes, lines: bytes = b"", content_type: str = JSON) -> None:
        fields = [(b"content-type", content_type.encode("latin-1")), *fields_of(lines)]
        self._sink.reply_started(status, [*fields, (b"content-length", b"%d" % len(body))])
        if body:
            self._sink.reply_continued(body)
        self._sink.reply_ended()

    def refuse(self, error: GatewayError, lines: bytes = b"") -> None:
        self._sink.refused(error, fields_of(lines))

    def break_off(self, event: bytes = b"") -> None:
        if event:
            self._sink.reply_continued(event)
        self._sink.reply_broken()
