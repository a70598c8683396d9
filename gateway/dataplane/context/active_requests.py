"""The requests under way in a worker: listed, and ended, when an operator asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from gateway.dataplane.context.active_request import ActiveRequest, cancelled
from gateway.dataplane.context.data_plane import Connection
from gateway.observability.active_request import LiveRequest


def list_requests(connections: Iterable[Connection], worker: int, now: float, limit: int) -> list[LiveRequest]:
    """Those that have been under way longest, the oldest first."""
    oldest = nsmallest(limit, _all(connections), key=lambda found: found[1].progress.since)
    return [_told(peer, live, worker, now) for peer, live in oldest]


def cancel_requests(connections: Iterable[Connection], worker: int, id: str) -> int:
    """End all requests of this id with an error: clients may give the same one twice. Returns how many there were."""
    found = [live for _, live in _all(connections) if _id(live, worker) == id]
    for live in found:
        live.cancel(cancelled())
    return len(found)


def _all(connections: Iterable[Connection]) -> Iterator[tuple[str, ActiveRequest]]:
    for connection in list(connections):
        for live in connection.live():
            yield connection.peer, live


def _id(live: ActiveRequest, worker: int) -> str:
    """The request's own, or where it has none yet, one that nobody else has."""
    return live.progress.id.decode("latin-1") or f"{worker:x}-{live.serial:x}"


def _told(peer: str, live: ActiveRequest, worker: int, now: float) -> LiveRequest:
    progress = live.progress
    target = progress.lane.target if progress.lane is not None else None
    method, path = progress.asked
    return LiveRequest(
        id=_id(live, worker),
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
