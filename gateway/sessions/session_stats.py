"""What happened to sessions in one worker, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SessionCounts:
    """What happened to sessions here since the start."""

    read: int = 0  # from Redis
    unread: int = 0  # gone on without, since Redis was late or away
    created: int = 0
    shed: int = 0  # new ones, from an endpoint that had too much to do
    # By engine, the endpoint that a session left, and why: drained, unavailable, or gone from the rules
    moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    # By engine and the endpoint that they ended with
    sequences_lost: Counter[tuple[str, str]] = field(default_factory=Counter)
    # By engine, the endpoint that a sequence left, and why: lost, or drained; another one was told its inputs
    sequences_moved: Counter[tuple[str, str, str]] = field(default_factory=Counter)
