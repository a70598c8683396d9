"""Between a client's stream and the engines' streams under it: what each may ask of the other."""

from __future__ import annotations

from typing import Protocol

from gateway.dataplane.context.call_head import Way
from gateway.dataplane.context.data_plane import DataPlane
from gateway.dataplane.grpc.reply_headers import Relayed
from gateway.dataplane.grpc.upstream_call import UpstreamCall
from gateway.protocol.errors import GatewayError
from gateway.protocol.infer_message_head import Names
from gateway.wire.grpc import Boundaries, MessageReader
from gateway.wire.http2.stream import Stream


class LegOwner(Protocol):
    """The client's call, as its legs see it."""

    plane: DataPlane
    outgoing: UpstreamCall
    request_id: bytes
    has_one_request: bool  # and so a response is due: the engine's time limits hold

    def field(self, name: bytes) -> bytes | None:
        """The first of the client's fields of this name."""
        ...

    def leg_began(self, leg: AnyLeg, found: Relayed) -> None: ...

    def leg_answered(self, leg: AnyLeg, data: bytes) -> None:
        """Responses, cut anywhere; `Leg.credit` gives their window back."""
        ...

    def leg_drained(self, leg: AnyLeg) -> None:
        """It takes more messages again."""
        ...

    def leg_refused(self, leg: AnyLeg, error: GatewayError, unsent: list[Names]) -> None:
        """Nobody has got any of its messages, and nobody will."""
        ...

    def leg_failed(self, leg: AnyLeg, text: str, code: int, names: Names) -> None:
        """One message has failed, and the leg goes on."""
        ...

    def leg_broke(self, leg: AnyLeg, error: GatewayError) -> None:
        """Some of its messages will stay without an answer."""
        ...

    def leg_ended(self, leg: AnyLeg, found: Relayed | None) -> None:
        """The engine has ended the stream with a status; None where all messages are answered and it had no stream."""
        ...


class AnyLeg(Protocol):
    """A leg, as the client's call sees it; see `Leg`."""

    way: Way
    boundaries: Boundaries
    encoding: bytes
    reader: MessageReader | None

    @property
    def url(self) -> str:
        """That of the endpoint that was asked last; empty where none was."""
        ...

    @property
    def num_unanswered(self) -> int:
        """Messages of whose response nothing has come, where each has one."""
        ...

    def start(self) -> None: ...

    def charge(self) -> None:
        """One more message is to be sent by it, which was started before.

        Raises: GatewayError where a limit is reached.
        """
        ...

    def send(self, framed: bytes, names: Names) -> None: ...

    def end(self) -> None: ...

    @property
    def is_backed_up(self) -> bool: ...

    def pass_to(self, client: Stream | None) -> None:
        """This leg alone answers: what it brings may go on to the client's stream as it is, without a word to the call.
        None: from now on the call is told of each piece again."""
        ...

    def credit(self, size: int) -> None: ...

    def owe(self, size: int) -> None: ...

    def pay(self) -> None: ...

    def cancel(self, reason: str, status: int) -> None:
        """Nobody waits for its responses; `reason` is counted as an error, empty where that is another leg's, and
        `status` as what the client is told, 0 where it is told nothing."""
        ...

    def sweep(self, now: float) -> None: ...
