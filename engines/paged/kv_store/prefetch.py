"""Reading blocks on threads of its own, while the engine goes on."""

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

# Reads are bound by the network and by the interpreter: more at a time are not faster.
NUM_THREADS = 2
# Reads of a fetch that wait for the engine to load them; of a long text there are many, and memory has an end.
_MAX_AHEAD = 8
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Prefetch:
    """What was asked before a sequence's turn: how many blocks are there from that with the name `first` on."""

    first: bytes
    found: Future[int]
    until: float  # of time.monotonic(): what is older is asked again


@dataclass(eq=False, slots=True)
class Fetch:
    """Blocks of a chain that are looked for: those from place `first` on. The engine's thread sets `is_wanted`, the
    reading one puts what it finds into `arrived`, and says when it is through."""

    request: GenerateRequest
    names: Sequence[bytes]
    first: int
    deadline: float  # of time.monotonic()
    prefill_seconds: float  # of a token; 0 where that is not known
    found: Future[int]  # how many of these blocks are there
    is_wanted: bool = True
    is_through: bool = False
    arrived: deque[list[Tensor]] = field(default_factory=deque)  # [n, L, S, G, D] of each array, in order
    room: Semaphore = field(default_factory=lambda: Semaphore(_MAX_AHEAD))
    waiting: list[Any] = field(default_factory=list)  # sequences that wait for it
    num_loaded: int = 0  # blocks

    def take(self) -> list[Tensor]:
        """What has arrived first."""
        arrays = self.arrived.popleft()
        self.room.release()
        return arrays

    def abandon(self) -> None:
        """Nobody wants the rest."""
        self.is_wanted = False
        self.arrived.clear()


class Fetcher:
    """`told` is called on a thread of its own whenever something has arrived."""

    def __init__(self, block_store: BlockStore, told: Callable[[], None]) -> None:
        self._block_store = block_store
        self._told = told
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="kv-reader")

    def find(self, request: GenerateRequest, names: Sequence[bytes]) -> Future[int]:
        """How many blocks of this chain's beginning are there."""
        return self._threads.submit(self._block_store.find, request, names)

    def begin(self, fetch: Fetch) -> None:
        """Read; `fetch.found` was asked before, so that it is under way where it is not yet known."""
        self._threads.submit(self._read, fetch)

    def close(self) -> None:
        """What is under way ends by its deadline, and nobody waits for that."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, fetch: Fetch) -> None:
        try:
            names = fetch.names[fetch.first :]
            if not fetch.is_wanted:
                return
            found = fetch.found.result()
            if not found or not self._block_store.is_worth(found, fetch.prefill_seconds):
                return
            for arrays in self._block_store.read(fetch.request, names[:found]):
                while not fetch.room.acquire(timeout=_POLL_SECONDS):
                    if not fetch.is_wanted:
                        return
                if not fetch.is_wanted:
                    return
                fetch.arrived.append(arrays)
                self._told()
        except Exception:  # whatever it is, the prompt is computed
            _log.exception("stored blocks cannot be read")
        finally:
            fetch.is_through = True
            self._told()
