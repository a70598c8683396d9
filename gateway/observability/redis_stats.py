"""What workers have to do with Redis: their counts, summed."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StoreUse:
    """One worker's use of Redis since its start, or that of several. `available` and `live` are now: how many of them
    find it worth asking, and hear its news."""

    calls: int = 0
    late: int = 0  # nobody waited for the answer any more
    failed: int = 0  # not reached, or not in a state to serve
    refused: int = 0  # a wrong type, no memory
    skipped: int = 0  # not even asked, since it had not answered before
    dropped: int = 0  # what was told and never written
    seconds: float = 0.0  # of all calls that were answered
    heard: int = 0  # news
    gaps: int = 0  # times that news were missed, and all was read anew
    available: int = 0
    live: int = 0

    @property
    def ended(self) -> StoreUse:
        """The same of a worker that is gone."""
        return replace(self, available=0, live=0)
