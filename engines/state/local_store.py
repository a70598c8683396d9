"""States in this process: for a single host, and for tests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter

from engines.state.interfaces import Make, State, StateCounts
from engines.state.sealed_value import CorruptError, ForeignError, seal, tenant_secret, unseal

DEFAULT_MAX_BYTES = 256 << 20


class LocalStateStore:
    """Stores at most `max_bytes` of the most recently used values, sealed as in Redis. Writes are immediate."""

    def __init__(
        self,
        *,
        secret: bytes | None = None,
        ttl_seconds: float = 86_400.0,
        max_bytes: int = DEFAULT_MAX_BYTES,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.counts = StateCounts()
        self._secret = secret
        self._ttl_seconds = ttl_seconds
        self._max_bytes = max_bytes
        self._clock = clock
        self._values: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # with the end of their time
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def is_paused(self) -> bool:
        return False

    def sizes(self, keys: Sequence[str]) -> list[int]:
        with self._lock:
            return [len(self._live(key) or b"") for key in keys]

    def get(self, keys: Sequence[str], tenant: str = "") -> list[State | None]:
        started_at = perf_counter()
        states = [self._opened(key, tenant) for key in keys]
        self.counts.read.observe(perf_counter() - started_at)
        self.counts.hits += sum(state is not None for state in states)
        self.counts.misses += sum(state is None for state in states)
        return states

    def write(self, key: str, state: State, tenant: str = "") -> bool:
        value = seal(key, state, None if self._secret is None else tenant_secret(self._secret, tenant))
        with self._lock:
            self._remove(key)
            if len(value) > self._max_bytes:
                self.counts.refused += 1
                return False
            self._values[key] = value, self._clock() + self._ttl_seconds
            self._num_bytes += len(value)
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._values)))
            self.counts.written += 1
            self.counts.bytes_out += len(value)
        return True

    def put(self, key: str, num_bytes: int, make: Make, tenant: str = "") -> bool:
        if not self.wants(key, num_bytes):
            return False
        state = make()
        return state is not None and self.write(key, state, tenant)

    def wants(self, key: str, num_bytes: int) -> bool:
        with self._lock:
            if self._live(key) is not None:
                self.counts.known += 1
                return False
            if num_bytes > self._max_bytes:
                self.counts.dropped += 1
                return False
        return True

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._remove(key)

    def flush(self, timeout_seconds: float) -> bool:
        return True

    def close(self) -> None:
        with self._lock:
            self._values.clear()
            self._num_bytes = 0

    def _opened(self, key: str, tenant: str) -> State | None:
        with self._lock:
            value = self._live(key)
        if value is None:
            return None
        self.counts.bytes_in += len(value)
        try:
            return unseal(key, value, None if self._secret is None else tenant_secret(self._secret, tenant))
        except CorruptError:
            self.counts.corrupt += 1
            self.delete([key])
        except ForeignError:
            self.counts.foreign += 1
        return None

    def _live(self, key: str) -> bytes | None:
        """A value that has not expired; its time to live starts again."""
        entry = self._values.get(key)
        if entry is None:
            return None
        now = self._clock()
        if entry[1] <= now:
            self._remove(key)
            return None
        self._values[key] = entry[0], now + self._ttl_seconds
        self._values.move_to_end(key)
        return entry[0]

    def _remove(self, key: str) -> None:
        entry = self._values.pop(key, None)
        if entry is not None:
            self._num_bytes -= len(entry[0])
