"""Redis behind a deadline, a circuit breaker and a bounded write queue, for an event loop.

A call that misses its deadline continues in the background, so that a slow Redis costs no connection. After a few
failures in a row the breaker (`store_breaker`) makes calls fail at once for a while. Writes without a reply wait in a
bounded queue: a long outage drops the oldest ones, and counts them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any

from gateway.net.circuit_breaker import store_breaker
from gateway.redis.address import RedisAddress
from gateway.redis.command import Command, StoreError

if TYPE_CHECKING:
    from gateway.redis.client import RedisClient

_log = logging.getLogger("gateway.redis")

# Concurrent pipelines; a further call waits, within its deadline.
_MAX_CALLS = 4
# Queued commands per pipeline.
_BATCH = 256
# Attempts to write a batch: enough to open the breaker at the beginning of an outage, and more after it.
_MAX_TRIES = 5
# A reply that has arrived in time may be a few iterations of the event loop away from its caller, and in a busy loop
# one iteration takes as long as the deadline: Redis was not late then.
_GRACE_ITERATIONS = 5
# Bounds a reply of a call whose own timeout is longer than that of replies.
_PATIENT_SECONDS = 60.0

# Between a failed call and the next, of those that may be repeated.
_RETRY_SECONDS = 0.02

_CANCEL_SECONDS = 0.5
_MAX_CANCELS = 10


@dataclass(slots=True)
class StoreCounts:
    """Calls since the start. A command that Redis refused (a wrong type, no memory) is `refused`."""

    calls: int = 0
    late: int = 0  # answered after the caller's deadline, or never
    failed: int = 0
    refused: int = 0
    skipped: int = 0  # not sent, since the breaker was open
    dropped: int = 0  # queued, and never written
    seconds: float = 0.0  # of all calls that were answered


class BoundedRedis:
    """One Redis, as one process uses it. `deadline` is the default timeout of `call`, in seconds."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        deadline: float = 0.005,
        timeout: float = 1.0,
        max_queued: int = 10_000,
        is_quiet: bool = False,
        limit: str = "--redis-deadline",
    ) -> None:
        """`timeout` bounds a reply, unless its caller waits longer. `is_quiet` leaves it to another process to log
        outages; late replies, which depend on this deadline, are logged anyway. `limit` is what sets the deadline."""
        # The client is 11 MB of code, which a gateway without Redis does not load.
        from gateway.redis.client import RedisClient

        self.address = address
        self.deadline = deadline
        self._limit = limit
        self.counts = StoreCounts()
        # As many again for pings, whatever is under way.
        self._client = RedisClient(address, timeout=timeout, connections=2 * _MAX_CALLS)
        self._timeout = timeout
        self._patient_client: RedisClient | None = None
        self._breaker = store_breaker()
        self._return_callbacks: list[Callable[[], None]] = []
        self._waiters: list[asyncio.Future[None]] = []  # calls that wait for the end of an outage
        self._is_quiet = is_quiet
        self._is_logged = False  # that Redis is left alone
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._queue: deque[Command] = deque(maxlen=max_queued)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._batch: list[Command] = []  # queued commands on their way
        self._tries = 0
        self._is_writing = False
        self._is_closed = False
        self._trial: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "left alone" if not self._breaker.is_closed else "answers"
        queued = len(self._queue) + len(self._batch)
        return f"<BoundedRedis {self.address}: {state}, {queued} queued, {len(self._tasks)} under way>"

    @property
    def is_available(self) -> bool:
        return self._breaker.is_closed

    @property
    def has_unwritten(self) -> bool:
        """Whether queued commands may not be written yet."""
        return bool(self._batch or self._queue)

    def on_return(self, callback: Callable[[], None]) -> None:
        """Call this when Redis answers again after an outage."""
        self._return_callbacks.append(callback)

    async def open(self, timeout: float = 0.5) -> bool:
        """Connect, so that the first calls need not; returns whether Redis answers within `timeout` seconds. If not,
        the breaker opens."""
        opening = self._spawn(self._connect())
        done, _ = await asyncio.wait((opening,), timeout=timeout)
        why = opening.result() if done else f"no connection within {timeout:g} s"
        while why and self._breaker.is_closed:
            self._failed(why)
        return not why

    async def evicts(self) -> str:
        """The policy by which Redis evicts keys once its memory is full; "" where it evicts none, or does not say."""
        with suppress(StoreError):
            return await self._client.evicts()
        return ""

    async def call(self, commands: Sequence[Command], timeout: float | None = None) -> list[Any]:
        """The replies to commands, sent in one pipeline. The reply to a refused command (a wrong type, no memory) is an
        exception.

        Raises: StoreError where they do not come within `timeout` seconds (None: the store's deadline).
        """
        if not self._breaker.is_closed or self._is_closed:
            self.counts.skipped += 1
            raise StoreError(f"{self.address} is left alone for a while, since it did not answer")
        has_started = asyncio.Event()
        timeout = self.deadline if timeout is None else timeout
        is_patient = timeout > self._timeout
        call = self._spawn(self._call(commands, has_started, is_patient=is_patient))
        if not await _ends_within(call, timeout):
            if is_patient or not has_started.is_set():
                call.cancel()
            self.counts.late += 1
            self._failed(f"no answer within {timeout * 1000:g} ms ({self._limit})", is_late=True)
            raise StoreError(f"{self.address} did not answer within {timeout * 1000:g} ms")
        answers: list[Any] = call.result()
        if timeout <= self.deadline:
            self._succeeded()
        return answers

    async def run(self, *commands: Command, timeout: float, refused: str = "Redis refuses") -> list[Any]:
        """The same, where Redis refuses none. Raises: StoreError, which begins with `refused` if it does."""
        return _accepted(await self.call(commands, timeout), refused)

    async def read(self, *commands: Command, timeout: float, refused: str = "Redis refuses") -> list[Any]:
        """`run` for commands that change nothing: an outage that ends within `timeout` seconds is waited for."""
        until = monotonic() + timeout
        while True:
            try:
                answers = await self.call(commands, max(0.0, until - monotonic()))
            except StoreError:
                if not await self._returns(until - monotonic()):
                    raise
            else:
                return _accepted(answers, refused)

    def enqueue(self, *commands: Command) -> None:
        """Run commands soon and in order, without waiting for their replies."""
        lost = len(self._queue) + len(commands) - (self._queue.maxlen or 0)
        self.counts.dropped += max(0, lost)
        self._queue.extend(commands)
        self._write_soon()

    async def flush(self, timeout: float = 1.0) -> None:
        """Wait until the queue is written, the breaker opens, or the timeout expires."""
        until = monotonic() + timeout
        while self.has_unwritten and self.is_available and monotonic() < until:
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        """Write the queue, as far as Redis takes it, and disconnect."""
        await self.flush()
        self._is_closed = True
        if self._trial is not None:
            self._trial.cancel()
        await end(*self._tasks)
        await self._client.close()
        if self._patient_client is not None:
            await self._patient_client.close()

    # Calling

    async def _returns(self, seconds: float) -> bool:
        """Whether Redis can be called within so many seconds: where it just failed, after a pause."""
        if seconds <= _RETRY_SECONDS or self._is_closed:
            return False
        if self._breaker.is_closed:
            await asyncio.sleep(_RETRY_SECONDS)
            return True
        returned = asyncio.get_running_loop().create_future()
        self._waiters.append(returned)
        try:
            await asyncio.wait((returned,), timeout=seconds)
        finally:
            self._waiters.remove(returned)
        return returned.done()

    async def _call(
        self, commands: Sequence[Command], has_started: asyncio.Event | None = None, *, is_patient: bool = False
    ) -> list[Any]:
        """Raises: StoreError."""
        async with self._turns:
            if has_started is not None:
                has_started.set()
            self.counts.calls += 1
            started_at = monotonic()
            try:
                answers = await (self._patient() if is_patient else self._client).call(commands)
            except StoreError as error:
                self.counts.failed += 1
                self._failed(str(error))
                raise
            took = monotonic() - started_at
        self.counts.seconds += took
        self.counts.refused += sum(isinstance(answer, Exception) for answer in answers)
        if took <= self.deadline:
            self._succeeded()
        return answers

    def _patient(self) -> RedisClient:
        """The client of calls that wait longer than others for a reply: redis-py has one timeout for a client."""
        if self._patient_client is None:
            self._patient_client = type(self._client)(self.address, timeout=_PATIENT_SECONDS, connections=_MAX_CALLS)
        return self._patient_client

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have left

    # The breaker

    def _succeeded(self) -> None:
        if not self._breaker.succeeded():
            return
        if self._is_logged:
            _log.info("Redis at %s answers again", self.address)
            self._is_logged = False
        for callback in self._return_callbacks:
            callback()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._write_soon()

    def _failed(self, why: str, *, is_late: bool = False) -> None:
        if self._breaker.failed(monotonic(), random.random()) and (is_late or not self._is_quiet):
            _log.warning("Redis at %s is left alone for a while: %s", self.address, why)
            self._is_logged = True
        if not self._breaker.is_closed and self._trial is None and not self._is_closed:
            self._try_later()

    def _try_later(self) -> None:
        self._trial = asyncio.get_running_loop().call_later(0.1, self._try)

    def _try(self) -> None:
        """Probe Redis once its pause is over."""
        self._trial = None
        if self._breaker.is_closed or self._is_closed:
            return
        if self._breaker.try_send(monotonic()):
            self._spawn(self._probe())
        else:
            self._try_later()

    async def _probe(self) -> None:
        why = await self._connect()
        if not why:
            ping = self._spawn(self._ping())
            on_time = await _ends_within(ping, self.deadline)
            why = ping.result() if on_time else f"no answer within {self.deadline * 1000:g} ms"
        if why:
            self._failed(why)
        else:
            self._succeeded()

    async def _connect(self) -> str:
        """Open as many connections as calls may need, so that the first calls after an outage do not miss their
        deadline for connecting. Returns the error, "" where there is none."""
        errors = await asyncio.gather(*[self._ping() for _ in range(_MAX_CALLS)])
        return max(errors, key=len)

    async def _ping(self) -> str:
        try:
            await self._client.ping()
        except StoreError as error:
            return str(error)
        return ""

    # The write queue

    def _write_soon(self) -> None:
        if self.has_unwritten and not self._is_writing and self.is_available and not self._is_closed:
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        """Write the queue. A batch that was under way when Redis went away is written again when it is back, though it
        may have arrived. A batch that keeps failing is dropped, and counted."""
        try:
            while self.has_unwritten and self.is_available:
                if not self._batch:
                    self._batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                    self._tries = 0
                self._tries += 1
                try:
                    await self._call(self._batch)
                except StoreError:
                    if self._tries < _MAX_TRIES:
                        continue
                    self.counts.dropped += len(self._batch)
                self._batch = []
        finally:
            self._is_writing = False


def _accepted(answers: list[Any], refused: str) -> list[Any]:
    """Raises: StoreError, which begins with `refused`, where one is an error."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise StoreError(f"{refused}: {answer}") from answer
    return answers


async def _ends_within(task: asyncio.Task[Any], seconds: float) -> bool:
    """Whether a task ends in time, by success or failure."""
    await asyncio.wait((task,), timeout=seconds)
    for _ in range(_GRACE_ITERATIONS):
        if task.done():
            return True
        await asyncio.sleep(0)
    return task.done()


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks until they have ended. Once is not enough: where a connection breaks at the same moment, redis-py
    raises its own error instead of the cancellation."""
    running = {task for task in tasks if not task.done()}
    for _ in range(_MAX_CANCELS):
        if not running:
            return
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=_CANCEL_SECONDS)
