"""The client of a REST request that the gateway makes in this process: its reply arrives as values, never as text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.context.local_replies import JSON
from gateway.dataplane.context.reply_fields import VIA
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import GatewayError
from gateway.wire.http1.head import Field, ResponseHead


class ReplySink(ABC):
    """Receives the reply. It ends by `reply_ended`, `refused` or `reply_broken`, once."""

    __slots__ = ()

    @abstractmethod
    def reply_started(self, status: int, fields: list[Field]) -> None:
        """The reply's status and end-to-end fields, names in lower case."""

    @abstractmethod
    def reply_continued(self, data: bytes) -> None:
        """A piece of the body, without framing."""

    @abstractmethod
    def reply_ended(self) -> None: ...

    @abstractmethod
    def refused(self, error: GatewayError, fields: Sequence[Field]) -> None:
        """No engine answers; instead of all of the above."""

    @abstractmethod
    def reply_broken(self, event: bytes) -> None:
        """The reply ends in its middle; `event` is what the reader of a stream gets as the reason."""

    def read_ahead(self, size: int) -> bool:
        """Whether so many more bytes may come while the client is paused."""
        return False

    def hold_body(self) -> None:  # noqa: B027
        """What has come of the request's body is held until it is whole."""

    def pause_body(self) -> None:  # noqa: B027
        """No more of the request's body can be taken for now; nothing to do where it is whole."""

    def resume_body(self) -> None:  # noqa: B027
        """The body is taken again."""


class InProcessClient:
    """The client of one request, for a sink; see `interfaces.Client`."""

    __slots__ = (
        "_sink",
        "forwarded_for_line",
        "forwarded_proto_line",
        "is_paused",
        "is_tls",
        "peer",
        "plane",
        "shared_connection",
        "trace",
    )

    takes_payload = True

    def __init__(
        self, plane: DataPlane, sink: ReplySink, peer: str, shared_connection: object | None, *, is_tls: bool = False
    ) -> None:
        self.plane = plane
        self.shared_connection = shared_connection
        self.peer = peer
        self.is_paused = False
        self.is_tls = is_tls
        self.trace: RequestTrace | None = None
        self.forwarded_for_line = b"x-forwarded-for: %b\r\n" % peer.encode("ascii", "replace")
        self.forwarded_proto_line = b"x-forwarded-proto: %b\r\n" % (b"https" if is_tls else b"http")
        self._sink = sink

    @classmethod
    def of(cls, client: Client, sink: ReplySink) -> InProcessClient:
        """The client of a request that stands in for this client's."""
        copy = cls.__new__(cls)
        copy.plane = client.plane
        copy.peer = client.peer
        copy.shared_connection = client.shared_connection
        copy.trace = client.trace
        copy.is_paused = client.is_paused
        copy.is_tls = client.is_tls
        copy.forwarded_for_line = client.forwarded_for_line
        copy.forwarded_proto_line = client.forwarded_proto_line
        copy._sink = sink
        return copy

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        fields = [field for field in head.fields if field[0] != b"x-request-id"]
        self._sink.reply_started(
            head.status, [*fields, *route_target.reply_fields, *added, VIA, (b"x-request-id", request_id)]
        )
        if data:
            self._sink.reply_continued(data)

    def write(self, data: bytes) -> None:
        if data:
            self._sink.reply_continued(data)

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        self._sink.reply_started(200, [(b"content-type", content_type.encode("latin-1")), *fields, VIA])
        if data:
            self._sink.reply_continued(data)

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        if data:
            self._sink.reply_continued(data)

    def read_ahead(self, size: int) -> bool:
        return self._sink.read_ahead(size)

    def write_at_once(self) -> None:
        """The sink gets each piece as it comes."""

    def expect_body(self) -> None:
        """The request's body needs no leave."""

    def hold_body(self) -> None:
        self._sink.hold_body()

    def pause_body(self) -> None:
        self._sink.pause_body()

    def resume_body(self) -> None:
        self._sink.resume_body()

    def reply_ended(self) -> None:
        self._sink.reply_ended()

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        length = (b"content-length", b"%d" % len(body))
        self._sink.reply_started(status, [(b"content-type", content_type.encode("latin-1")), *fields, length])
        if body:
            self._sink.reply_continued(body)
        self._sink.reply_ended()

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        self._sink.refused(error, fields)

    def break_off(self, event: bytes = b"") -> None:
        self._sink.reply_broken(event)
