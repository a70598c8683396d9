"""Reading blocks on threads of their own, while the engine goes on."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Semaphore
from typing import Any

from torch import Tensor

from engines.paged.base.types import GenerateRequest
from engines.paged.kv_store.block_store import BlockStore

_log = logging.getLogger(__name__)

# Reads are bound by the network and the interpreter: more threads are not faster.
NUM_THREADS = 2
# Reads of a fetch that wait to be loaded: the memory that they take is bounded.
_MAX_AHEAD = 8
_POLL_SECONDS = 0.05


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
    names: Sequence[bytes]
    first: int
    deadline: float  # of time.monotonic()
    prefill_seconds: float  # of a token; 0 while unknown
    num_found: Future[int]  # how many of these blocks are stored
    is_needed: bool = True
    is_complete: bool = False
    arrived: deque[list[Tensor]] = field(default_factory=deque)  # [n, L, S, G, D] of each array, in order
    room: Semaphore = field(default_factory=lambda: Semaphore(_MAX_AHEAD))
    waiting: list[Any] = field(default_factory=list)  # sequences
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


class Fetcher:
    """`notify` is called on a reading thread whenever something has arrived."""

    def __init__(self, block_store: BlockStore, notify: Callable[[], None]) -> None:
        self._block_store = block_store
        self._notify = notify
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="kv-reader")

    def find(self, request: GenerateRequest, names: Sequence[bytes]) -> Future[int]:
        """How many blocks of this chain's beginning are stored."""
        return self._threads.submit(self._block_store.find, request, names)

    def begin(self, fetch: Fetch) -> None:
        """Read. `fetch.num_found` was submitted before, and so is running or done."""
        self._threads.submit(self._read, fetch)

    def close(self) -> None:
        """Without waiting: active reads end by their deadline."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, fetch: Fetch) -> None:
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
                self._notify()
        except Exception:  # the prompt is computed instead
            _log.exception("stored blocks cannot be read")
        finally:
            fetch.is_complete = True
            self._notify()
