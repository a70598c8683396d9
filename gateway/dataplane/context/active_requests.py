"""The requests under way in a worker: how far each is, listed and cancelled on an operator's request.

Nothing is stored for it: the state of a request is read when the list is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from typing import Protocol

from gateway.auth.identity import unauthenticated
from gateway.dataplane.context.head_reader import Request
from gateway.dataplane.context.route_target import RouteTarget
from gateway.observability.stats import LiveRequest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.principal import Principal
from gateway.routing.steps import Steps


class Stage(Enum):
    """What a request waits for."""

    READING = "reading"  # the client, for the rest of the request; or Redis, for its session
    LIMITED = "limited"  # its turn, by a limit
    CONNECTING = "connecting"  # a connection to the engine
    REQUESTED = "asking"  # the engine's reply
    ANSWERING = "answering"  # the reply's end


_REVOKED = unauthenticated("the API key of this request has been removed, or has expired", "invalid_token")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one request is. `since` is of `time.monotonic`, `request_line` the client's method and path; `id` is
    empty where it has none yet, `route_target` None where the rules have not decided on it, or send it nowhere."""

    stage: Stage
    since: float
    id: bytes = b""
    route_target: RouteTarget | None = None
    endpoint: str = ""
    model: str = ""
    request_line: tuple[str, str] = ("", "")
    protocol: str = "grpc"
    principal: Principal | None = None


def progress_of(
    request: Request,
    stage: Stage,
    since: float,
    *,
    id: bytes = b"",
    route_target: RouteTarget | None = None,
    endpoint: str = "",
) -> Progress:
    plan, id = request.plan, id or request.id or b""
    if plan.error is not None:  # its path names nothing
        return Progress(stage, since, id, request_line=plan.request_line, protocol="rest", principal=plan.principal)
    facts = plan.facts
    line = plan.request_line
    return Progress(stage, since, id, route_target, endpoint, facts.model, line, facts.protocol, plan.principal)


@dataclass(frozen=True, slots=True)
class ActiveRequest:
    """A request on its connection, and how to cancel it. `serial` differs among the connection's requests."""

    progress: Progress
    serial: int
    cancel: Callable[[GatewayError], None]


class Connection(Protocol):
    """A client's connection, as the data plane sees it."""

    @property
    def peer(self) -> str:
        """Its address."""

    def live(self) -> list[ActiveRequest]:
        """The requests under way on it."""

    def sweep(self, now: float) -> None: ...

    def drain(self) -> None:
        """Close when idle for a moment, else after the reply."""

    def abort(self) -> None: ...


def list_requests(connections: Iterable[Connection], worker: int, now: float, limit: int) -> list[LiveRequest]:
    """Those that have been under way longest, the oldest first."""
    oldest = nsmallest(limit, _all(connections), key=lambda entry: entry[1].progress.since)
    return [_live_request(peer, active, worker, now) for peer, active in oldest]


def cancel_requests(connections: Iterable[Connection], worker: int, id: str) -> int:
    """End all requests of this id with an error: clients may give the same one twice. Returns their number."""
    matches = [active for _, active in _all(connections) if _id(active, worker) == id]
    for active in matches:
        active.cancel(GatewayError(ErrorKind.CANCELLED, "an operator has cancelled this request"))
    return len(matches)


def end_revoked(connections: Iterable[Connection], is_valid: Callable[[Principal], bool]) -> Steps[None]:
    """End the requests under way whose callers' keys are no longer valid, in steps between which others are served."""
    judged: dict[str, bool] = {}
    for connection in list(connections):
        for active in connection.live():
            principal = active.progress.principal
            if principal is None:
                continue
            key = principal.key
            if key not in judged:
                judged[key] = is_valid(principal)
            if not judged[key]:
                active.cancel(_REVOKED)
        yield


def _all(connections: Iterable[Connection]) -> Iterator[tuple[str, ActiveRequest]]:
    for connection in list(connections):
        for active in connection.live():
            yield connection.peer, active


def _id(active: ActiveRequest, worker: int) -> str:
    """The request's own id, or where it has none yet, a unique one."""
    return active.progress.id.decode("latin-1") or f"{worker:x}-{active.serial:x}"


def _live_request(peer: str, active: ActiveRequest, worker: int, now: float) -> LiveRequest:
    progress = active.progress
    target = progress.route_target.spec if progress.route_target is not None else None
    method, path = progress.request_line
    return LiveRequest(
        id=_id(active, worker),
        worker=worker,
        protocol=progress.protocol,
        method=method,
        path=path.partition("?")[0],
        peer=peer,
        stage=progress.stage.value,
        age=round(now - progress.since, 4),
        route=target.route if target is not None else "",
        arm=(target.arm or "") if target is not None else "",
        engine=target.engine if target is not None else "",
        endpoint=progress.endpoint,
        model=progress.model,
    )
