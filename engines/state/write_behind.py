"""Background writes: values wait in a bounded queue for a thread that writes them."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from engines.state.interfaces import Make, StateCounts

# Limits of a batch: large enough to hide round trips, small enough for a slow network.
_BATCH_BYTES, _BATCH_VALUES = 8 << 20, 64
# After this time a value in use is looked up again: its time to live is extended, or it is written again if evicted.
_RECENT_SECONDS = 300.0
# The wait at close for the batch in progress.
_JOIN_SECONDS = 1.0
_MAX_RECENT = 65_536


@dataclass(frozen=True, slots=True)
class Offered:
    key: str
    num_bytes: int
    make: Make
    tenant: str


class WriteBehind:
    """One thread. Values with equal keys are equal."""

    def __init__(self, write: Callable[[Sequence[Offered]], set[str]], counts: StateCounts, max_bytes: int) -> None:
        """`write` writes a batch and returns the stored keys; it must not raise."""
        self._write = write
        self._counts = counts
        self._max_bytes = max_bytes
        self._queue: deque[Offered] = deque()
        self._pending: set[str] = set()  # queued, or under way
        self._recent: OrderedDict[str, float] = OrderedDict()  # written, until then
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def wants(self, key: str, num_bytes: int) -> bool:
        """Whether to create this value. One that was written a while ago is looked up first; one without room is
        counted as dropped."""
        with self._changed:
            return self._wants(key, num_bytes)

    def put(self, offered: Offered) -> bool:
        with self._changed:
            if not self._wants(offered.key, offered.num_bytes):
                return False
            self._enqueue(offered)
            return True

    def know(self, keys: Iterable[str]) -> None:
        """These were read just now: they need not be written."""
        with self._changed:
            self._remember(keys)

    def forget(self, keys: Iterable[str]) -> None:
        """These values are missing in the store."""
        with self._changed:
            for key in keys:
                self._recent.pop(key, None)

    def flush(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending or self._is_over, timeout_seconds)

    def close(self) -> None:
        """Finish the batch in progress; drop the queue."""
        with self._changed:
            self._is_over = True
            self._counts.dropped += len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)

    def _wants(self, key: str, num_bytes: int) -> bool:
        if key in self._pending:
            return False
        if (until := self._recent.get(key)) is not None:
            if until <= monotonic() and not self._is_over:
                self._enqueue(Offered(key, 0, lambda: None, ""))
            return False
        if self._is_over or self._num_bytes + num_bytes > self._max_bytes:
            self._counts.dropped += 1
            return False
        return True

    def _enqueue(self, offered: Offered) -> None:
        self._pending.add(offered.key)
        self._queue.append(offered)
        self._num_bytes += offered.num_bytes
        self._changed.notify_all()

    def _run(self) -> None:
        while batch := self._take():
            stored = self._write(batch)
            with self._changed:
                for each in batch:
                    self._pending.discard(each.key)
                    self._num_bytes -= each.num_bytes
                    self._recent.pop(each.key, None)
                self._remember(stored)
                self._changed.notify_all()

    def _remember(self, keys: Iterable[str]) -> None:
        until = monotonic() + _RECENT_SECONDS
        for key in keys:
            self._recent[key] = until
            self._recent.move_to_end(key)
        while len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)

    def _take(self) -> list[Offered]:
        """The next batch; empty once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_over)
            batch: list[Offered] = []
            num_bytes = 0
            while self._queue and len(batch) < _BATCH_VALUES and num_bytes < _BATCH_BYTES:
                batch.append(self._queue.popleft())
                num_bytes += batch[-1].num_bytes
            return batch
