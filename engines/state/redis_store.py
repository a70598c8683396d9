"""States in Redis, by the blocking client: callers wait on their own thread.

Failures of Redis raise nothing. A call that fails or exceeds the deadline reads as missing; after several in a row
calls are suspended for a while (`store_breaker`). A corrupt value is deleted, so that it is written again. Several
values are GETs in one pipeline, because a cluster's MGET takes keys of one slot only.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any, TypeVar

from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from engines.state.interfaces import Make, State, StateCounts
from engines.state.sealed_value import CorruptError, ForeignError, seal, tenant_secret, unseal
from engines.state.write_behind import Offered, WriteBehind
from gateway.net.circuit_breaker import store_breaker
from gateway.redis.address import RedisAddress
from gateway.redis.client import connect


class Pipelines:
    """The blocking client, created at first use: a cluster's connects on creation."""

    def __init__(self, address: RedisAddress, timeout: float, connect_timeout: float, max_connections: int) -> None:
        self._address = address
        self._options = {"timeout": timeout, "connect_timeout": connect_timeout, "max_connections": max_connections}
        self._client: Any = None
        self._lock = threading.Lock()

    def run(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """The replies, of which some may be `ResponseError`. Raises: RedisError, OSError, or any error of a client."""
        with self._lock:
            if self._client is None:
                self._client = connect(self._address, **self._options)  # type: ignore[arg-type]
            pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                raise answer
        return answers

    def close(self) -> None:
        with suppress(RedisError, OSError):
            if self._client is not None:
                self._client.close()


_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 << 20
_MAX_CONNECTIONS = 32
# The pause of writes to a Redis without memory; one that evicts (maxmemory-policy allkeys-lru) always has some.
_FULL_SECONDS = 5.0
_QUIET_SECONDS = 10.0
# Writes are in the background: megabytes may take this long over a slow network.
_WRITE_SECONDS = 2.0
_Answer = TypeVar("_Answer")


class RedisStateStore:
    """One Redis of any layout. Values live for `ttl_seconds` after the last read or write."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        secret: bytes | None = None,
        ttl_seconds: float = 86_400.0,
        deadline_seconds: float = 0.25,
        max_queued_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        """`deadline_seconds` is the limit of waiting for a reply; it connects later."""
        self.address = address
        self.counts = StateCounts()
        self._secret = secret
        self._ttl_ms = max(1, round(ttl_seconds * 1000))
        self._reader = Pipelines(address, deadline_seconds, deadline_seconds, _MAX_CONNECTIONS)
        self._writer = Pipelines(address, max(deadline_seconds, _WRITE_SECONDS), deadline_seconds, 1)
        self._breaker = store_breaker()
        self._quiet_until = 0.0
        self._full_until = 0.0  # it responds, but has no memory
        self._lock = threading.Lock()
        self._behind = WriteBehind(self._write_batch, self.counts, max_queued_bytes)

    @property
    def is_paused(self) -> bool:
        return not self._breaker.is_closed

    def sizes(self, keys: Sequence[str]) -> list[int]:
        answers = self._pipeline([("STRLEN", key) for key in keys])
        if answers is None:
            return [0] * len(keys)
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Exception):
                self._refused(key, answer)
        sizes = [answer if isinstance(answer, int) else 0 for answer in answers]
        self._behind.forget(key for key, size in zip(keys, sizes, strict=True) if not size)
        return sizes

    def get(self, keys: Sequence[str], tenant: str = "") -> list[State | None]:
        started_at = perf_counter()
        commands = [command for key in keys for command in (("GET", key), ("PEXPIRE", key, self._ttl_ms))]
        answers = self._pipeline(commands)
        if answers is None:
            self.counts.misses += len(keys)
            return [None] * len(keys)
        self.counts.read.observe(perf_counter() - started_at)
        states = [self._opened(key, value, tenant) for key, value in zip(keys, answers[::2], strict=True)]
        self._behind.know(key for key, state in zip(keys, states, strict=True) if state is not None)
        self.counts.hits += sum(state is not None for state in states)
        self.counts.misses += sum(state is None for state in states)
        return states

    def write(self, key: str, state: State, tenant: str = "") -> bool:
        value = seal(key, state, self._secret_of(tenant))
        answers = self._pipeline([("SET", key, value, "PX", self._ttl_ms)])
        return answers is not None and self._count_written(answers[0], len(value))

    def put(self, key: str, num_bytes: int, make: Make, tenant: str = "") -> bool:
        return self.wants(key, num_bytes) and self._behind.put(Offered(key, num_bytes, make, tenant))

    def wants(self, key: str, num_bytes: int) -> bool:
        return monotonic() >= self._full_until and self._behind.wants(key, num_bytes)

    def delete(self, keys: Sequence[str]) -> None:
        self._pipeline([("UNLINK", key) for key in keys])
        self._behind.forget(keys)

    def flush(self, timeout_seconds: float) -> bool:
        return self._behind.flush(timeout_seconds)

    def close(self) -> None:
        self._behind.close()
        self._reader.close()
        self._writer.close()

    # Reading

    def _opened(self, key: str, value: Any, tenant: str) -> State | None:
        if not isinstance(value, bytes):
            if isinstance(value, Exception):
                self._refused(key, value)
            return None
        self.counts.bytes_in += len(value)
        try:
            return unseal(key, value, self._secret_of(tenant))
        except CorruptError as error:
            self._delete_strange(key, str(error))
        except ForeignError:
            self.counts.foreign += 1
        return None

    def _refused(self, key: str, error: Exception) -> None:
        """Count replies that are not values: keys of another type."""
        if str(error).startswith("WRONGTYPE"):
            self._delete_strange(key, str(error))
        else:
            self.counts.refused += 1

    def _delete_strange(self, key: str, why: str) -> None:
        """Delete corrupt values; few are logged."""
        self.counts.corrupt += 1
        if monotonic() >= self._quiet_until:
            self._quiet_until = monotonic() + _QUIET_SECONDS
            _log.warning("%s in Redis at %s is not what was written, and deleted: %s", key, self.address, why)
        self.delete([key])

    def _secret_of(self, tenant: str) -> bytes | None:
        return None if self._secret is None else tenant_secret(self._secret, tenant)

    # Writing

    def _write_batch(self, batch: Sequence[Offered]) -> set[str]:
        """Extend the stored ones, create and write the others; the keys that are stored now."""
        there = self._pipeline([("PEXPIRE", each.key, self._ttl_ms) for each in batch], self._writer)
        if there is None:
            self.counts.dropped += len(batch)
            return set()
        stored = {each.key for each, is_there in zip(batch, there, strict=True) if is_there == 1}
        self.counts.known += len(stored)
        absent = [(each.key, value) for each in batch if each.key not in stored and (value := self._created(each))]
        commands = [("SET", key, value, "PX", self._ttl_ms, "NX") for key, value in absent]
        answers = self._pipeline(commands, self._writer)
        if answers is None:
            self.counts.dropped += len(absent)
            return stored
        for (key, value), answer in zip(absent, answers, strict=True):
            if self._count_written(answer, len(value)):
                stored.add(key)
        return stored

    def _created(self, offered: Offered) -> bytes | None:
        try:
            state = offered.make()
            return None if state is None else seal(offered.key, state, self._secret_of(offered.tenant))
        except Exception:  # the device or its data is gone: nothing to store
            _log.exception("the value of %s cannot be made", offered.key)
            return None

    def _count_written(self, answer: Any, num_bytes: int) -> bool:
        if isinstance(answer, Exception):
            self.counts.refused += 1
            if isinstance(answer, OutOfMemoryError) and monotonic() >= self._full_until:
                self._full_until = monotonic() + _FULL_SECONDS
                _log.warning("Redis at %s is full, nothing is put there for a while: %s", self.address, answer)
            return False
        if answer is not None:
            self.counts.written += 1
            self.counts.bytes_out += num_bytes
        return True

    # Calling

    def _pipeline(self, commands: Sequence[tuple[Any, ...]], client: Pipelines | None = None) -> list[Any] | None:
        """The replies, of which some may be `ResponseError`; None on failure."""
        if not commands:
            return []
        return self._call(lambda: (client or self._reader).run(commands))

    def _call(self, call: Callable[[], _Answer]) -> _Answer | None:
        with self._lock:
            is_allowed = self._breaker.try_send(monotonic())
        if not is_allowed:
            self.counts.skipped += 1
            return None
        try:
            answer = call()
        except Exception as error:  # a client with a broken connection may raise anything
            self.counts.failures += 1
            with self._lock:
                is_new = self._breaker.failed(monotonic(), random.random())
            if is_new:
                _log.warning("Redis at %s is left alone for a while: %s", self.address, error or type(error).__name__)
            return None
        with self._lock:
            is_back = self._breaker.succeeded()
        if is_back:
            _log.info("Redis at %s answers again", self.address)
        return answer
