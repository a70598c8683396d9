"""The interfaces between a client's connection and the handler of its request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.local_replies import JSON
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import GatewayError
from gateway.protocol.sequence import AnySession
from gateway.wire.http1.head import Field, ResponseHead


class Client(Protocol):
    """A client's connection, as a handler sees it."""

    plane: DataPlane
    peer: str  # its address
    forwarded_for_line: bytes
    forwarded_proto_line: bytes
    is_tls: bool
    takes_payload: bool  # the body of a relayed reply is handed over without the framing of HTTP/1.1
    shared_connection: object | None  # the client's connection where that may send many requests at a time
    trace: RequestTrace | None  # of the request under way; None where it is not sampled so far

    @property
    def is_paused(self) -> bool:
        """It reads slower than the reply comes."""

    # An engine's reply

    def relay(
        self, head: ResponseHead, route_target: RouteTarget, added: Sequence[Field], request_id: bytes, data: bytes
    ) -> None:
        """Begin the reply with an engine's head, the target's fields and those `added`, and the first of the body."""

    def write(self, data: bytes) -> None:
        """Go on with a relayed reply whose head frames its body: straight to the transport."""

    # A reply of the gateway's own

    def start_stream(self, content_type: str, fields: Sequence[Field], data: bytes) -> None:
        """Begin a stream under status 200, with its first piece."""

    def write_piece(self, data: bytes, ended: bool = False) -> None:
        """Go on with a stream, or with a relayed reply that ends with its connection; `reply_ended` follows the last
        piece."""

    def read_ahead(self, size: int) -> bool:
        """Whether so many more bytes of the reply may be written though the client reads slower."""

    def write_at_once(self) -> None:
        """The reply comes in small pieces, and its reader waits for each."""

    def expect_body(self) -> None:
        """The body will be read: a client that waits for leave to send it gets it."""

    def hold_body(self) -> None:
        """As `expect_body`; what has come of it is held until it is whole, which may end the request."""

    def pause_body(self) -> None: ...

    def resume_body(self) -> None: ...

    def reply_ended(self) -> None:
        """The reply is written whole."""

    def respond(self, status: int, body: bytes, fields: Sequence[Field] = (), content_type: str = JSON) -> None:
        """Answer with a whole reply of the gateway's own; `fields` are further fields."""

    def refuse(self, error: GatewayError, fields: Sequence[Field] = ()) -> None:
        """Answer with an error."""

    def break_off(self, event: bytes = b"") -> None:
        """Close in the middle of a reply, so that no client takes it for whole; `event` is the reason, for the reader
        of a stream of events."""


class Handler(ABC):
    """What answers a request. It ends by the client's `reply_ended`, `respond`, `refuse` or `break_off`, once."""

    __slots__ = ()

    @abstractmethod
    def body_received(self, data: bytes, ended: bool) -> None:
        """Take the body, in pieces. The first call comes with the head, and may bring nothing."""

    @property
    def begun(self) -> bool:
        """Whether something of the reply is written already."""
        return False

    @property
    def has_attempted(self) -> bool:
        """Whether it has made attempts at its engine, which limits have counted."""
        return True

    @abstractmethod
    def client_gone(self, reason: str = "client_gone", status: int = 0) -> None:
        """End without a reply: the connection is lost, or it answers the request itself, for `reason`, with this
        status."""

    def client_paused(self) -> None:  # noqa: B027
        """The client reads slower than the reply comes."""

    def client_resumed(self) -> None:  # noqa: B027
        """The client reads again."""

    def sweep(self, now: float) -> None:  # noqa: B027
        """Called about once a second; `now` is of `time.monotonic`."""

    @abstractmethod
    def progress(self) -> Progress:
        """How far the request is."""


# Makes the handler of a request for a target; the session is None where it has none.
Serve = Callable[[Client, Request, RouteTarget, AnySession | None], Handler]
