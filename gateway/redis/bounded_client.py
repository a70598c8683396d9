"""Redis behind a deadline, a breaker and a bounded queue, for an event loop.

Nobody waits for it longer than he says. A call that misses its deadline goes on by itself, so that a slow Redis costs
no connection; after a few failures in a row calls fail at once with `StoreError` for a while (`store_breaker`). What is
told, not asked, waits in a bounded queue: a long outage drops the oldest, and counts them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any

from gateway.net.circuit_breaker import store_breaker
from gateway.redis.address import RedisAddress
from gateway.redis.asyncio_util import end
from gateway.redis.errors import StoreError
from gateway.redis.script import Command, Script
from gateway.redis.stats import StoreCounts

__all__ = ["Command", "Script", "Store", "StoreCounts", "StoreError"]

_log = logging.getLogger("gateway.redis")

# Pipelines under way at a time; a call beyond them waits its turn, within its deadline.
_MAX_CALLS = 4
# How much of what was told goes in one pipeline.
_BATCH = 256
# How often it is sent: in an outage that begins, as often as it takes to leave Redis alone, and when that is over.
_MAX_TRIES = 5
# An answer that has come in time may still be a few turns of the event loop away from who asked, and in a busy loop a
# turn takes as long as the deadline: that is no lateness of Redis.
_TURNS_OF_GRACE = 5


class Store:
    """One Redis, as one worker uses it. `deadline` is the default patience of `ask`, in seconds."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        deadline: float = 0.005,
        timeout: float = 1.0,
        max_queued: int = 10_000,
        is_quiet: bool = False,
    ) -> None:
        """`timeout` is how long a reply is waited for by those who do wait. A quiet one leaves it to another process to
        tell the log that Redis cannot be reached, and tells itself only of what depends on its deadline: lateness."""
        # The client is 11 MB of code, which a gateway without Redis does not load.
        from gateway.redis.client import RedisClient

        self.address = address
        self.deadline = deadline
        self.counts = StoreCounts()
        # As many again for those who knock, whatever is under way.
        self._caller = RedisClient(address, timeout=timeout, connections=2 * _MAX_CALLS)
        self._breaker = store_breaker()
        self._returned: list[Callable[[], None]] = []
        self._is_quiet = is_quiet
        self._has_told = False  # the log that Redis is left alone
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._told: deque[Command] = deque(maxlen=max_queued)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._batch: list[Command] = []  # of what was told, on its way
        self._tries = 0
        self._is_writing = False
        self._is_closed = False
        self._trial: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "left alone" if not self._breaker.is_closed else "answers"
        return (
            f"<Store {self.address}: {state}, {len(self._told) + len(self._batch)} told, {len(self._tasks)} under way>"
        )

    @property
    def is_available(self) -> bool:
        """Whether it is worth asking."""
        return self._breaker.is_closed

    @property
    def has_unwritten(self) -> bool:
        """Whether some of what was told may not be there yet."""
        return bool(self._batch or self._told)

    def on_return(self, returned: Callable[[], None]) -> None:
        """Have this called when Redis answers again after an outage."""
        self._returned.append(returned)

    async def open(self, patience: float = 0.5) -> bool:
        """Connect, so that the first who ask do not wait for that; tells whether Redis answers within so many seconds.
        Where it does not it is left alone, and tried again and again."""
        opening = self._spawn(self._connect())
        done, _ = await asyncio.wait((opening,), timeout=patience)
        why = opening.result() if done else f"no connection within {patience:g} s"
        while why and self._breaker.is_closed:
            self._failed(why)
        return not why

    async def ask(self, commands: Sequence[Command], patience: float | None = None) -> list[Any]:
        """The answers to commands, sent in one pipeline. Where one is refused (a wrong type, no memory) its answer is
        an exception.

        Raises: StoreError where they do not come within `patience` seconds (None: the store's deadline).
        """
        if not self._breaker.is_closed or self._is_closed:
            self.counts.skipped += 1
            raise StoreError(f"{self.address} is left alone for a while, since it did not answer")
        has_started = asyncio.Event()
        call = self._spawn(self._call(commands, has_started))
        patience = self.deadline if patience is None else patience
        if not await _ends_within(call, patience):
            if not has_started.is_set():
                call.cancel()
            self.counts.late += 1
            self._failed(f"no answer within {patience * 1000:g} ms (--redis-deadline)", is_late=True)
            raise StoreError(f"{self.address} did not answer within {patience * 1000:g} ms")
        answers: list[Any] = call.result()
        if patience <= self.deadline:
            self._succeeded()
        return answers

    def tell(self, *commands: Command) -> None:
        """Have commands run, soon and in order, whose answers nobody needs. Never waits."""
        lost = len(self._told) + len(commands) - (self._told.maxlen or 0)
        self.counts.dropped += max(0, lost)
        self._told.extend(commands)
        self._write_soon()

    async def flush(self, patience: float = 1.0) -> None:
        """Wait until what was told is written, or Redis is left alone, or the time is over."""
        until = monotonic() + patience
        while self.has_unwritten and self.is_available and monotonic() < until:
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        """Write what was told, as far as Redis takes it, and hang up."""
        await self.flush()
        self._is_closed = True
        if self._trial is not None:
            self._trial.cancel()
        await end(*self._tasks)
        await self._caller.close()

    # Calling

    async def _call(self, commands: Sequence[Command], has_started: asyncio.Event | None = None) -> list[Any]:
        """Raises: StoreError."""
        async with self._turns:
            if has_started is not None:
                has_started.set()
            self.counts.calls += 1
            started_at = monotonic()
            try:
                answers = await self._caller.call(commands)
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

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked may have gone

    # The breaker

    def _succeeded(self) -> None:
        if not self._breaker.succeeded():
            return
        if self._has_told:
            _log.info("Redis at %s answers again", self.address)
            self._has_told = False
        for returned in self._returned:
            returned()
        self._write_soon()

    def _failed(self, why: str, *, is_late: bool = False) -> None:
        if self._breaker.failed(monotonic(), random.random()) and (is_late or not self._is_quiet):
            _log.warning("Redis at %s is left alone for a while: %s", self.address, why)
            self._has_told = True
        if not self._breaker.is_closed and self._trial is None and not self._is_closed:
            self._try_later()

    def _try_later(self) -> None:
        self._trial = asyncio.get_running_loop().call_later(0.1, self._try)

    def _try(self) -> None:
        """Ask on behalf of all whether Redis is back, once its pause is over."""
        self._trial = None
        if self._breaker.is_closed or self._is_closed:
            return
        if self._breaker.try_send(monotonic()):
            self._spawn(self._find_out())
        else:
            self._try_later()

    async def _find_out(self) -> None:
        why = await self._connect()
        if not why:
            knocking = self._spawn(self._knock())
            on_time = await _ends_within(knocking, self.deadline)
            why = knocking.result() if on_time else f"no answer within {self.deadline * 1000:g} ms"
        if why:
            self._failed(why)
        else:
            self._succeeded()

    async def _connect(self) -> str:
        """Have as many connections as calls may need: the first calls after an outage would else miss their deadline
        for connecting. Returns what is wrong, "" where nothing is."""
        found = await asyncio.gather(*[self._knock() for _ in range(_MAX_CALLS)])
        return max(found, key=len)

    async def _knock(self) -> str:
        try:
            await self._caller.knock()
        except StoreError as error:
            return str(error)
        return ""

    # What is told

    def _write_soon(self) -> None:
        if self.has_unwritten and not self._is_writing and self.is_available and not self._is_closed:
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        """Write all that was told. What was under way when Redis went away is written once more when it is back, though
        it may have arrived: better twice than never. What fails again and again is dropped, and counted."""
        try:
            while self.has_unwritten and self.is_available:
                if not self._batch:
                    self._batch = [self._told.popleft() for _ in range(min(_BATCH, len(self._told)))]
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


async def _ends_within(task: asyncio.Task[Any], seconds: float) -> bool:
    """Whether it does; one that fails ends, too."""
    await asyncio.wait((task,), timeout=seconds)
    for _ in range(_TURNS_OF_GRACE):
        if task.done():
            return True
        await asyncio.sleep(0)
    return task.done()
