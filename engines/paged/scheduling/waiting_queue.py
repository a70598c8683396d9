"""Who waits for room, the most urgent first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engines.paged.scheduling.sequence import Sequence


class WaitingLine:
    """By priority, then by arrival: who was preempted stands where it stood before."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Sequence]] = []
        self._members: set[Sequence] = set()
        self._pushed: set[Sequence] = set()  # whoever is in the heap: some have left the line since

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:  # in no particular order
        return iter(self._members)

    def add(self, sequence: Sequence) -> None:
        self._members.add(sequence)
        if sequence not in self._pushed:
            self._pushed.add(sequence)
            heapq.heappush(self._heap, (-sequence.request.priority, sequence.arrival, sequence.choice, sequence))

    def remove(self, sequence: Sequence) -> None:
        """One that does not wait any more; it need not be at the front."""
        self._members.discard(sequence)
        while self._heap and self._heap[0][3] not in self._members:
            self._pushed.discard(heapq.heappop(self._heap)[3])

    @property
    def first(self) -> Sequence | None:
        return self._heap[0][3] if self._heap else None
