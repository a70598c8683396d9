"""Between the engine and the store: full blocks go out, stored ones come in, and no step waits for either.

A waiting sequence whose beginning is not in memory is looked up before it is admitted, and waits in a state of its own
(`SequenceStatus.FETCHING`) meanwhile, without seat or blocks. What arrives is loaded into free blocks between two steps
and named: from then on they are cached blocks like any others, which admission finds. Whatever goes wrong, the sequence
waits for room again, and computes what it does not find.

All of it is the engine's thread's.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from torch import Tensor

from engines.paged.base.transfer import HostCopy
from engines.paged.kv_store.block_store import READ_BYTES, BlockStore, Filled
from engines.paged.kv_store.prefetch import Fetch, Fetcher, Prefetch
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import Sequence, SequenceStatus

_log = logging.getLogger(__name__)

# Copies that may follow the last step that was read: right behind it, before the one launched since, behind that.
_UNREAD = 3
# Loaded between two steps while somebody generates: a few milliseconds of copying.
_LOAD_BYTES = 4 * READ_BYTES


@dataclass(slots=True)
class KVTransferCounts:
    """Of tokens, but for `given_up`: fetches that were not through by their deadline."""

    looked_up: int = 0
    loaded: int = 0
    declined: int = 0  # not looked up, as computing them is faster
    given_up: int = 0
    saved_seconds: float = 0.0  # that computing what was loaded would have taken


class KVTransfer:
    def __init__(
        self,
        block_store: BlockStore,
        scheduler: Scheduler,
        *,
        deadline_seconds: float,
        always: bool,
        prefill_seconds: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`always`: stored blocks are read whatever computing them would take. `prefill_seconds` tells what a token
        takes, 0 where nobody knows; `wake` is called on any thread when something has arrived."""
        self.counts = KVTransferCounts()
        self._block_store = block_store
        self._scheduler = scheduler
        self._deadline_seconds = deadline_seconds
        self._always = always
        self._prefill_seconds = prefill_seconds
        self._fetcher = Fetcher(block_store, wake)
        self._fetches: dict[bytes, Fetch] = {}  # by the first name that each looks for
        self._filled: list[Filled] = []  # not yet copied
        self._copied: deque[tuple[list[Filled], HostCopy]] = deque()  # on their way to the host
        scheduler.exchange_with(self._look_up, self._take_note)

    def __repr__(self) -> str:
        return f"<KVTransfer: {len(self._fetches)} fetches, {len(self._filled)} blocks to copy, {self._block_store!r}>"

    def ask_early(self, sequence: Sequence) -> None:
        """Begin to look up a sequence that nobody else knows yet, on any thread: where a step is under way when it
        comes, the answer is there when that ends."""
        # What is in memory may change meanwhile: then the answer is of no use.
        names, first = self._scheduler.block_manager.chain(sequence)
        prefill_seconds = 0.0 if self._always else self._prefill_seconds()
        if first < len(names) and self._block_store.is_worth(len(names) - first, prefill_seconds):
            with suppress(RuntimeError):  # the engine is being stopped
                found = self._fetcher.find(sequence.request, names[first:])
                sequence.early = Prefetch(names[first], found, monotonic() + self._deadline_seconds)

    # What the scheduler asks and tells

    def _look_up(self, sequence: Sequence, names: list[bytes], first: int) -> bool:
        """Whether a sequence is to wait for blocks from place `first` of its chain on."""
        under_way = self._fetches.get(names[first])
        if under_way is not None:  # of another with the same beginning: what is behind that is looked up then
            under_way.waiting.append(sequence)
            return True
        prefill_seconds = 0.0 if self._always else self._prefill_seconds()
        num_tokens = (len(names) - first) * self._block_store.block_size
        if not self._block_store.is_worth(len(names) - first, prefill_seconds):
            self.counts.declined += num_tokens
            return False
        self.counts.looked_up += num_tokens
        now, early = monotonic(), sequence.early
        if early is None or early.first != names[first] or early.until < now:
            found = self._fetcher.find(sequence.request, names[first:])
        elif early.found.done() and not early.found.exception() and not early.found.result():
            return False
        else:
            found = early.found
        # A store that stands still is noticed by each answer; one that comes is worth what computing would take.
        deadline = now + max(self._deadline_seconds, num_tokens * self._prefill_seconds())
        fetch = Fetch(sequence.request, names, first, deadline, prefill_seconds, found)
        fetch.waiting.append(sequence)
        self._fetches[names[first]] = fetch
        self._fetcher.begin(fetch)
        return True

    def _take_note(self, sequence: Sequence, name: bytes, block: int) -> None:
        self._filled.append(Filled(sequence.request, name, block))

    # Around each step

    def before_step(self) -> None:
        """Copy out what was filled and may be overwritten by the step, then load what has arrived."""
        self._copy_out()
        room = _LOAD_BYTES if self._scheduler.running else None
        for first, fetch in list(self._fetches.items()):
            room = self._load(fetch, room)
            fetch.waiting = [each for each in fetch.waiting if each.status is SequenceStatus.FETCHING]
            is_through = not fetch.is_wanted or (fetch.is_through and not fetch.arrived)
            is_late = monotonic() >= fetch.deadline
            if is_through or is_late or not fetch.waiting:
                fetch.abandon()
                del self._fetches[first]
                self.counts.given_up += bool(is_late and not is_through and fetch.waiting)
                self._release(fetch)

    def after_launch(self) -> None:
        """Copy out what the step fills: the device has it behind the step, and before the next one."""
        self._copy_out()

    def after_read(self) -> None:
        """A step was read: what was copied before it was launched is on the host, and the last copies may not be."""
        self._hand_on(_UNREAD)

    def when_idle(self) -> None:
        """No step is under way: whatever is left goes out."""
        self._copy_out()
        self._hand_on(0)

    def forget(self) -> None:
        """A step has failed, and nobody can say what the blocks hold."""
        self._filled.clear()
        self._copied.clear()

    def close(self, flush_seconds: float) -> None:
        """Let what was filled be written, for so long."""
        for fetch in self._fetches.values():
            fetch.abandon()
        self._fetches.clear()
        self._fetcher.close()
        self.when_idle()
        self._block_store.store.flush(flush_seconds)
        self._block_store.store.close()

    def stats(self) -> dict[str, float]:
        """For metrics."""
        counts = self.counts
        return {
            "kv_store_queries_total": counts.looked_up,
            "kv_store_hits_total": counts.loaded,
            "kv_store_declined_total": counts.declined,
            "kv_store_given_up_total": counts.given_up,
            "kv_store_saved_seconds_total": counts.saved_seconds,
            "kv_store_paused": self._block_store.store.is_paused,
            **self._block_store.store.counts.as_numbers("kv_store_values"),
        }

    # Parts

    def _copy_out(self) -> None:
        """Blocks that still have their names, and that the store does not know."""
        if not self._filled:
            return
        pool = self._scheduler.pool
        wanted: dict[bytes, Filled] = {}
        for filled in self._filled:
            if (
                filled.name not in wanted
                and pool.find((filled.name,)) == [filled.block]
                and self._block_store.wants(filled)
            ):
                wanted[filled.name] = filled
        self._filled.clear()
        if not wanted:
            return
        blocks = list(wanted.values())
        try:
            copied = self._block_store.memory.copy_out([each.block for each in blocks])
        except Exception:
            _log.exception("blocks cannot be copied to be stored")
            return
        self._copied.append((blocks, copied))
        if not self._block_store.memory.is_behind:
            self._hand_on(0)

    def _hand_on(self, but: int) -> None:
        """Give copies to the store, all but so many of the last ones."""
        while len(self._copied) > but:
            try:
                self._block_store.put(*self._copied.popleft())
            except Exception:  # the device is gone, and the next step will tell
                _log.exception("blocks cannot be copied to be stored")

    def _load(self, fetch: Fetch, room: int | None) -> int | None:
        """What of it has arrived, as far as there is room; the bytes that are left of that."""
        while fetch.arrived and (room is None or room > 0):
            arrays = fetch.take()
            count = len(arrays[0])
            start = fetch.first + fetch.num_loaded
            names = fetch.names[: start + count]
            placed = self._scheduler.block_manager.adopt(names, start, len(self._scheduler.running))
            if not self._copy_in(placed, start, arrays):
                fetch.abandon()
                break
            fetch.num_loaded += count
            self.counts.loaded += len(placed) * self._block_store.block_size
            self.counts.saved_seconds += len(placed) * self._block_store.block_size * self._prefill_seconds()
            if len(self._scheduler.pool.find(names)) < len(names):
                fetch.abandon()  # there is no more room
            if room is not None:
                room -= count * self._block_store.block_bytes
        return room

    def _copy_in(self, placed: list[tuple[int, int]], start: int, arrays: list[Tensor]) -> bool:
        """Fill blocks, (place in the chain, block), with what has arrived of places from `start` on; whether that was
        done."""
        if not placed:
            return True
        try:
            if len(placed) < len(arrays[0]):
                places = [place - start for place, _ in placed]
                arrays = [array[places] for array in arrays]
            self._block_store.memory.copy_in([block for _, block in placed], arrays)
        except Exception:
            _log.exception("stored blocks cannot be loaded")
            self._scheduler.pool.forget()  # names may stand on blocks that were not filled
            return False
        return True

    def _release(self, fetch: Fetch) -> None:
        """Those that waited go on; of several with one beginning, the others may find more behind it."""
        for place, sequence in enumerate(fetch.waiting):
            sequence.was_looked_up = not (place and fetch.num_loaded)
            self._scheduler.fetched(sequence)
