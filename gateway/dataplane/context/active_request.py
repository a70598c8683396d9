"""How far a request is, for whoever asks for those under way; nothing of it is kept, all is read when asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.snapshot import Lane
from gateway.protocol.errors import ErrorKind, GatewayError


class Stage(Enum):
    """What is waited for."""

    READING = "reading"  # the client, for the rest of the request; or Redis, for its session
    LIMITED = "limited"  # its turn, by a limit
    CONNECTING = "connecting"  # a connection to the engine
    ASKING = "asking"  # the engine's reply
    ANSWERING = "answering"  # the reply's end


@dataclass(frozen=True, slots=True)
class Progress:
    """One request. `since` is of `time.monotonic`, `asked` the client's method and path; `id` is empty where it has
    none yet, `lane` None where the rules have not been asked, or send it nowhere."""

    stage: Stage
    since: float
    id: bytes = b""
    lane: Lane | None = None
    endpoint: str = ""
    model: str = ""
    asked: tuple[str, str] = ("", "")
    protocol: str = "grpc"


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request on its connection, and how it is ended. `serial` tells it from the connection's others."""

    progress: Progress
    serial: int
    cancel: Callable[[GatewayError], None]


def of_request(
    request: Request, stage: Stage, since: float, *, id: bytes = b"", lane: Lane | None = None, endpoint: str = ""
) -> Progress:
    """How far a REST request is."""
    plan = request.plan
    asked = plan.asked.method, plan.asked.target.decode("latin-1")
    if plan.error is not None:  # nobody has read what it is about
        return Progress(stage, since, id or request.id or b"", asked=asked, protocol="rest")
    facts = plan.facts
    return Progress(stage, since, id or request.id or b"", lane, endpoint, facts.model, asked, facts.protocol)


def cancelled() -> GatewayError:
    """What the client of a request is told that an operator has ended."""
    return GatewayError(ErrorKind.CANCELLED, "an operator has cancelled this request")
