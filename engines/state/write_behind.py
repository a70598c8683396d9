"""Writing behind: values wait in a bounded queue for a thread that writes them, and nobody waits for that."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from engines.state.interfaces import Make, StateCounts

# What is written in one go: enough that round trips do not count, little enough that a slow network takes it in time.
_BATCH_BYTES, _BATCH_VALUES = 8 << 20, 64
# After so long a value that is used again is looked for: its time begins anew, and what was evicted is wanted again.
_RECENT_SECONDS = 300.0
# How long an end waits for what is being written.
_JOIN_SECONDS = 1.0
_MAX_RECENT = 65_536


@dataclass(frozen=True, slots=True)
class Offered:
    """A value to be made and written."""

    key: str
    num_bytes: int
    make: Make
    tenant: str


class WriteBehind:
    """One thread. Values are told apart by their keys: equal keys are equal values."""

    def __init__(self, write: Callable[[Sequence[Offered]], set[str]], counts: StateCounts, max_bytes: int) -> None:
        """`write` writes a batch and returns the keys that are stored now; what it raises is its own fault."""
        self._write = write
        self._counts = counts
        self._max_bytes = max_bytes
        self._queue: deque[Offered] = deque()
        self._known: set[str] = set()  # queued, or under way
        self._recent: OrderedDict[str, float] = OrderedDict()  # written, until then
        self._num_bytes = 0
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<WriteBehind: {len(self._known)} values, {self._num_bytes} bytes waiting, {len(self._recent)} recent>"

    def wants(self, key: str, num_bytes: int) -> bool:
        """Whether it is worth making this one. One that was written some time ago is looked for first, in its turn; one
        that there is no room for is counted as dropped."""
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
        """These are not there, whoever has written them."""
        with self._changed:
            for key in keys:
                self._recent.pop(key, None)

    def flush(self, timeout_seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._known or self._is_over, timeout_seconds)

    def close(self) -> None:
        """What is under way is written; what waits is given up."""
        with self._changed:
            self._is_over = True
            self._counts.dropped += len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)

    def _wants(self, key: str, num_bytes: int) -> bool:
        if key in self._known:
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
        self._known.add(offered.key)
        self._queue.append(offered)
        self._num_bytes += offered.num_bytes
        self._changed.notify_all()

    def _run(self) -> None:
        while batch := self._take():
            stored = self._write(batch)
            with self._changed:
                for each in batch:
                    self._known.discard(each.key)
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
        """What is written next; nothing once it is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_over)
            batch: list[Offered] = []
            num_bytes = 0
            while self._queue and len(batch) < _BATCH_VALUES and num_bytes < _BATCH_BYTES:
                batch.append(self._queue.popleft())
                num_bytes += batch[-1].num_bytes
            return batch
