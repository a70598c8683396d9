"""Exchange of blocks between the engine and the store: full blocks are written, stored ones read; no step waits.

A waiting sequence whose beginning is not in memory is looked up before it is admitted, and waits without seat or blocks
meanwhile (`SequenceStatus.FETCHING`). Blocks that arrive are loaded into free blocks between two steps and named: they
are cached blocks that admission finds. After any fault the sequence waits for room again, and the engine computes what
it does not find.

Everything but `prefetch` and `on_arrival` is used on the engine's thread.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Semaphore
from time import monotonic

from torch import Tensor

from engines.paged.base.options import EngineOptions
from engines.paged.base.transfer import HostCopy
from engines.paged.base.types import GenerateRequest
from engines.paged.kv_store.block_store import READ_BYTES, BlockStore, Filled
from engines.paged.scheduling.scheduler import Scheduler
from engines.paged.scheduling.sequence import Sequence, SequenceStatus

_log = logging.getLogger(__name__)

# Reads are bound by the network and the interpreter: more threads are not faster.
_NUM_THREADS = 2
_POLL_SECONDS = 0.05
# Reads of a fetch that wait to be loaded: the memory that they take is bounded.
_MAX_AHEAD = 8
# Copies that may not be on the host when a step is read: the last one before the step launched since, and that step's.
_UNREAD = 3
# Loaded between two steps while sequences decode: a few milliseconds of copying.
_LOAD_BYTES = 4 * READ_BYTES


@dataclass(frozen=True, slots=True)
class Prefetch:
    """An early look-up: how many blocks are stored from the one named `first` on."""

    first: bytes
    num_found: Future[int]
    until: float  # of time.monotonic(): an older answer is not used


@dataclass(eq=False, slots=True)
class Fetch:
    """The blocks of a chain from place `first` on. The engine's thread clears `is_needed`; the reading thread appends
    to `arrived` and sets `is_complete`."""

    request: GenerateRequest
    names: list[bytes]
    first: int
    deadline: float  # of time.monotonic()
    prefill_seconds: float  # of a token; 0 while unknown
    num_found: Future[int]  # how many of these blocks are stored
    is_needed: bool = True
    is_complete: bool = False
    arrived: deque[list[Tensor]] = field(default_factory=deque)  # [n, L, S, G, D] of each array, in order
    room: Semaphore = field(default_factory=lambda: Semaphore(_MAX_AHEAD))
    waiting: list[Sequence] = field(default_factory=list)
    num_loaded: int = 0  # blocks

    def take(self) -> list[Tensor]:
        """The oldest read."""
        arrays = self.arrived.popleft()
        self.room.release()
        return arrays

    def abandon(self) -> None:
        """Drop the rest."""
        self.is_needed = False
        self.arrived.clear()


class BlockTransfer:
    """What the engine's loop calls around its steps; without a store nothing is transferred."""

    def __init__(self) -> None:
        self.on_arrival: Callable[[], None] = lambda: None  # called on any thread when stored blocks have arrived

    def prefetch(self, sequence: Sequence) -> None:
        """Begin to look up a sequence before it is scheduled, on any thread."""

    def before_step(self) -> None:
        """Copy out blocks that the step may overwrite, then load what has arrived."""

    def after_launch(self) -> None:
        """Copy out the blocks that the launched step fills: the device does it before the next step."""

    def after_read(self) -> None:
        """A step was read: write the copies that were made before it was launched."""

    def when_idle(self) -> None:
        """No step is active: write the remaining blocks."""

    def forget(self) -> None:
        """A step has failed, and the content of blocks is unknown."""

    def close(self, flush_seconds: float) -> None:
        """End; blocks that wait to be written have `flush_seconds`."""

    def stats(self) -> dict[str, float]:
        """For metrics."""
        return {}


@dataclass(slots=True)
class KVTransferCounts:
    """Tokens, except `expired`: fetches that were not complete by their deadline."""

    looked_up: int = 0
    loaded: int = 0
    declined: int = 0  # not looked up, as computing them is faster
    expired: int = 0
    saved_seconds: float = 0.0  # of computing the loaded tokens


class KVTransfer(BlockTransfer):
    """The exchange with a store."""

    def __init__(
        self,
        block_store: BlockStore,
        scheduler: Scheduler,
        options: EngineOptions,
        prefill_seconds: Callable[[], float],
    ) -> None:
        """`prefill_seconds` is the time of one token, 0 while it is unknown."""
        super().__init__()
        self.counts = KVTransferCounts()
        self._block_store = block_store
        self._scheduler = scheduler
        self._deadline_seconds = options.kv_deadline
        self._always = options.kv_fetch == "always"  # also where computing blocks is faster than reading them
        self._prefill_seconds = prefill_seconds
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="kv-reader")
        self._fetches: dict[bytes, Fetch] = {}  # by the first name that each looks for
        self._filled: list[Filled] = []  # not yet copied
        self._copied: deque[tuple[list[Filled], HostCopy]] = deque()  # on their way to the host
        scheduler.connect_store(self._look_up, self._on_full)

    def prefetch(self, sequence: Sequence) -> None:
        # The cache may change until the sequence is scheduled: the answer is of no use then.
        names, first = self._scheduler.block_manager.chain(sequence)
        prefill_seconds = 0.0 if self._always else self._prefill_seconds()
        if first < len(names) and self._block_store.is_worth(len(names) - first, prefill_seconds):
            with suppress(RuntimeError):  # the engine is being stopped
                num_found = self._threads.submit(self._block_store.find, sequence.request, names[first:])
                sequence.prefetch = Prefetch(names[first], num_found, monotonic() + self._deadline_seconds)

    def before_step(self) -> None:
        self._copy_out()
        room = _LOAD_BYTES if self._scheduler.running else None
        for first, fetch in list(self._fetches.items()):
            room = self._load(fetch, room)
            fetch.waiting = [each for each in fetch.waiting if each.status is SequenceStatus.FETCHING]
            is_complete = not fetch.is_needed or (fetch.is_complete and not fetch.arrived)
            is_late = monotonic() >= fetch.deadline
            if is_complete or is_late or not fetch.waiting:
                fetch.abandon()
                del self._fetches[first]
                self.counts.expired += bool(is_late and not is_complete and fetch.waiting)
                self._release(fetch)

    def after_launch(self) -> None:
        self._copy_out()

    def after_read(self) -> None:
        self._write_copied(_UNREAD)

    def when_idle(self) -> None:
        self._copy_out()
        self._write_copied(0)

    def forget(self) -> None:
        self._filled.clear()
        self._copied.clear()

    def close(self, flush_seconds: float) -> None:
        for fetch in self._fetches.values():
            fetch.abandon()
        self._fetches.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)  # active reads end by their deadline
        self.when_idle()
        self._block_store.store.flush(flush_seconds)
        self._block_store.store.close()

    def stats(self) -> dict[str, float]:
        counts = self.counts
        return {
            "kv_store_queries_total": counts.looked_up,
            "kv_store_hits_total": counts.loaded,
            "kv_store_declined_total": counts.declined,
            "kv_store_given_up_total": counts.expired,
            "kv_store_saved_seconds_total": counts.saved_seconds,
            "kv_store_paused": self._block_store.store.is_paused,
            **self._block_store.store.counts.as_numbers("kv_store_values"),
        }

    # Called by the scheduler

    def _look_up(self, sequence: Sequence, names: list[bytes], first: int) -> bool:
        """Whether a sequence is to wait for blocks from place `first` of its chain on."""
        active = self._fetches.get(names[first])
        if active is not None:  # of another sequence with the same beginning; the rest is looked up afterwards
            active.waiting.append(sequence)
            return True
        prefill_seconds = 0.0 if self._always else self._prefill_seconds()
        num_tokens = (len(names) - first) * self._block_store.block_size
        if not self._block_store.is_worth(len(names) - first, prefill_seconds):
            self.counts.declined += num_tokens
            return False
        self.counts.looked_up += num_tokens
        now, prefetch = monotonic(), sequence.prefetch
        if prefetch is None or prefetch.first != names[first] or prefetch.until < now:
            num_found = self._threads.submit(self._block_store.find, sequence.request, names[first:])
        elif prefetch.num_found.done() and not prefetch.num_found.exception() and not prefetch.num_found.result():
            return False
        else:
            num_found = prefetch.num_found
        # Each single reply has its own limit; a store that replies may take as long as computing would.
        deadline = now + max(self._deadline_seconds, num_tokens * self._prefill_seconds())
        fetch = Fetch(sequence.request, names, first, deadline, prefill_seconds, num_found)
        fetch.waiting.append(sequence)
        self._fetches[names[first]] = fetch
        self._threads.submit(self._read, fetch)
        return True

    def _on_full(self, sequence: Sequence, name: bytes, block: int) -> None:
        self._filled.append(Filled(sequence.request, name, block))

    # Writing

    def _copy_out(self) -> None:
        """Copy blocks that still have their names and that the store does not have."""
        if not self._filled:
            return
        pool = self._scheduler.pool
        missing: dict[bytes, Filled] = {}
        for filled in self._filled:
            if (
                filled.name not in missing
                and pool.find((filled.name,)) == [filled.block]
                and self._block_store.should_write(filled)
            ):
                missing[filled.name] = filled
        self._filled.clear()
        if not missing:
            return
        blocks = list(missing.values())
        try:
            copied = self._block_store.memory.copy_out([each.block for each in blocks])
        except Exception:
            _log.exception("blocks cannot be copied to be stored")
            return
        self._copied.append((blocks, copied))
        if not self._block_store.memory.is_asynchronous:
            self._write_copied(0)

    def _write_copied(self, but: int) -> None:
        """Give copies to the store, except the last `but` ones."""
        while len(self._copied) > but:
            try:
                self._block_store.put(*self._copied.popleft())
            except Exception:  # the device has failed, and so will the next step
                _log.exception("blocks cannot be copied to be stored")

    # Reading

    def _load(self, fetch: Fetch, room: int | None) -> int | None:
        """Load the blocks that have arrived, within `room` bytes (None: all); the bytes that remain."""
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
                fetch.abandon()  # no free blocks
            if room is not None:
                room -= count * self._block_store.block_bytes
        return room

    def _copy_in(self, placed: list[tuple[int, int]], start: int, arrays: list[Tensor]) -> bool:
        """Fill blocks, (place in the chain, block), from `arrays`, which begin at place `start`; False on a failure."""
        if not placed:
            return True
        try:
            if len(placed) < len(arrays[0]):
                places = [place - start for place, _ in placed]
                arrays = [array[places] for array in arrays]
            self._block_store.memory.copy_in([block for _, block in placed], arrays)
        except Exception:
            _log.exception("stored blocks cannot be loaded")
            self._scheduler.pool.forget()  # some named blocks may not be filled
            return False
        return True

    def _release(self, fetch: Fetch) -> None:
        """Let the waiting sequences go on; of several with one beginning, all but the first look up what follows."""
        for place, sequence in enumerate(fetch.waiting):
            sequence.was_looked_up = not (place and fetch.num_loaded)
            self._scheduler.fetched(sequence)

    # On a reading thread

    def _read(self, fetch: Fetch) -> None:
        """Read the blocks of a fetch. `fetch.num_found` was submitted before, and so is running or done."""
        try:
            names = fetch.names[fetch.first :]
            if not fetch.is_needed:
                return
            num_found = fetch.num_found.result()
            if not num_found or not self._block_store.is_worth(num_found, fetch.prefill_seconds):
                return
            for arrays in self._block_store.read(fetch.request, names[:num_found]):
                while not fetch.room.acquire(timeout=_POLL_SECONDS):
                    if not fetch.is_needed:
                        return
                if not fetch.is_needed:
                    return
                fetch.arrived.append(arrays)
                self.on_arrival()
        except Exception:  # the prompt is computed instead
            _log.exception("stored blocks cannot be read")
        finally:
            fetch.is_complete = True
            self.on_arrival()
