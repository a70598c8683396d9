"""What a store has to do with Redis, counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreCounts:
    """What happened since the start. A command that Redis refused (a wrong type, no memory) is `refused`."""

    calls: int = 0
    late: int = 0  # answered after the caller's deadline, or never
    failed: int = 0
    refused: int = 0
    skipped: int = 0  # not even asked, since the breaker was open
    dropped: int = 0  # told, and never written, since the queue was full
    seconds: float = 0.0  # of all calls that were answered
