"""Requests under way, as operators read them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiveRequest:
    """One request. `age` is in seconds; `stage` says what is waited for: reading, limited, connecting, asking or
    answering (`gateway.dataplane.active_request.Stage`)."""

    id: str
    worker: int
    protocol: str
    method: str
    path: str
    peer: str
    stage: str
    age: float
    route: str
    arm: str
    engine: str
    endpoint: str
    model: str
