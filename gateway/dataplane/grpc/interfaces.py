"""What a client's HTTP/2 connection, the calls on it and the engines' streams under a call require of each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from gateway.dataplane.context.active_requests import Progress
from gateway.dataplane.context.call_head import CallHead
from gateway.dataplane.context.call_target import CallTarget
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.context.ended_request import AttemptHistory, DecisionFacts, EndedRequest
from gateway.dataplane.context.route_target import RouteTarget
from gateway.net.client_certificate import ClientCertificate
from gateway.net.timer_wheel import Slot
from gateway.observability.request_trace import RequestTrace
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.infer_message_head import Names
from gateway.wire.grpc import Boundaries, MessageReader
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.stream import Stream


class CallClient(Protocol):
    """A client's connection, as a call uses it. `forwarded` are the fields about the client for engines,
    `passing` the same, encoded."""

    plane: DataPlane
    peer: str
    is_tls: bool
    forwarded: Sequence[Field]
    passing: bytes

    @property
    def certificate(self) -> ClientCertificate | None:
        """What the client has shown."""

    def call_failed(
        self,
        stream: Stream,
        error: GatewayError,
        request_id: bytes,
        route_target: RouteTarget | None,
        *,
        begun: bool,
        code: int | None,
    ) -> None:
        """End the reply with an error; `begun`: its first fields are sent. `code` is the gRPC status where it is not
        that of the error's kind."""

    def call_ended(self, stream: Stream) -> None:
        """The reply is sent, or waits for the client to read it; the rest of the request is not wanted."""


class OpenCall(Protocol):
    """What answers a call, as its client's connection sees it while the call is open."""

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    def drained(self, stream: Stream) -> None: ...

    def sweep(self, now: float) -> None: ...

    def progress(self) -> Progress | None: ...

    def cancel(self, error: GatewayError) -> None: ...


class CallHandler(ABC):
    """Answers a call; it ends by the client's `call_ended`, or by `stream_reset` of its stream."""

    __slots__ = ()

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:  # noqa: B027
        """Never of a client's stream."""

    @abstractmethod
    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None: ...

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.data_received(stream, b"", True)  # gRPC clients send none, but HTTP/2 allows them

    @abstractmethod
    def stream_reset(self, stream: Stream, code: int, why: str) -> None: ...

    @abstractmethod
    def drained(self, stream: Stream) -> None: ...

    @abstractmethod
    def sweep(self, now: float) -> None:
        """Called about once a second; `now` is of `time.monotonic`."""

    @abstractmethod
    def progress(self) -> Progress | None:
        """How far it is; None where it is over."""

    @abstractmethod
    def cancel(self, error: GatewayError) -> None:
        """End it with this error, at the engine and for the client."""


class ClientCall(CallHandler):
    """The state of a call that takes messages until it is over; the client may have set a deadline."""

    def __init__(self, client: CallClient, stream: Stream, head: CallHead) -> None:
        self._client = client
        self._stream = stream
        self._head = head
        self._started_at = self._active_at = monotonic()
        self.request_id = head.id or client.plane.new_request_id()
        self._owed = 0  # bytes of messages whose window is not given back
        self._has_ended = False  # the client sends no more
        self._is_over = False
        self._slot: Slot | None = None
        if head.timeout is not None:
            self._slot = client.plane.wheel.add(self, self._started_at + head.timeout)

    @abstractmethod
    def _fail(self, error: GatewayError) -> None:
        """End an open call with an error."""

    def expired(self) -> None:
        self._slot = None
        self._fail(GatewayError(ErrorKind.DEADLINE, "the client's deadline (grpc-timeout) has passed"))

    def cancel(self, error: GatewayError) -> None:
        self._fail(error)

    def _leave(self) -> bool:
        """End the call; False where it has ended already."""
        if self._is_over:
            return False
        self._is_over = True
        held = self._client.plane.held
        if held.total:
            held.release(self)
        if self._slot is not None:
            self._slot.discard(self)
            self._slot = None
        return True


class BackendStream(Protocol):
    """What answers some of a stream's messages: an engine's stream, or REST requests one after another."""

    target: CallTarget
    boundaries: Boundaries
    encoding: bytes  # of compressed responses
    reader: MessageReader | None  # of the responses, once they are written one by one

    @property
    def url(self) -> str:
        """The latest endpoint's; empty where there is none."""

    @property
    def num_unanswered(self) -> int:
        """Messages of whose response nothing has come, where each has one."""

    @property
    def is_backed_up(self) -> bool:
        """Whether messages wait: for a connection, or for the engine to read."""

    def start(self) -> None:
        """The first message is there."""

    def charge(self) -> None:
        """Count one more message by the limits.

        Raises: GatewayError where a limit is reached.
        """

    def send(self, framed: bytes, names: Names) -> None: ...

    def end(self) -> None:
        """No more messages follow."""

    def pass_to(self, client: Stream | None) -> None:
        """Write responses to the client's stream directly, without the call: this backend alone answers. None: hand
        each piece to the call again."""

    def credit(self, size: int) -> None:
        """`size` bytes of the responses are written."""

    def owe(self, size: int) -> None:
        """`size` bytes of the responses wait for the client; `pay` follows."""

    def pay(self) -> None: ...

    def error_received(self, response: bytes) -> None:
        """One of the responses that are written one by one tells of an error."""

    def cancel(self, reason: str, status: int) -> None:
        """Its responses are not wanted. `reason` is counted as an error, empty where that belongs to another backend;
        `status` is the HTTP status of the reply, 0 where it has none."""

    def sweep(self, now: float) -> None: ...


def log_call(
    client: CallClient,
    head: CallHead,
    status: int,
    reason: str,
    started_at: float,
    request_id: bytes,
    *,
    facts: DecisionFacts | None = None,
    route_target: RouteTarget | None = None,
    endpoint: str = "",
    trace: RequestTrace | None = None,
    code: int = -1,
    attempts: AttemptHistory | None = None,
    request_bytes: int = 0,
    response_bytes: int = 0,
) -> None:
    """Report the end of a call to the logs; `code` is its status, -1 where there is none."""
    ended = EndedRequest(
        client.peer,
        head.plan.request_line,
        status,
        reason,
        monotonic() - started_at,
        request_id,
        route_target.spec if route_target is not None else None,
        endpoint,
        facts,
        head.plan.principal,
        trace,
        attempts,
        request_bytes=request_bytes,
        response_bytes=response_bytes,
        code=code,
        is_rpc=head.plan.rest_facts is None,
        sent_by_rpc=True,
    )
    client.plane.request_log.add(ended)
