"""Redis behind a deadline, a breaker and a bounded queue, for an event loop.

Nobody waits for it longer than he says. A call that misses its deadline goes on by itself, so that a slow Redis costs
no connection; after a few failures in a row nobody asks for a while (`Pause`), and whoever asks reads `StoreError` at
once. What is told, not asked, waits in a bounded queue: a long outage drops the oldest, and counts them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from gateway.redis.address import RedisAddress
from gateway.redis.breaker import Pause
from gateway.redis.connecting import connect_async

_log = logging.getLogger("gateway.redis")

# Pipelines under way at a time; a call beyond them waits its turn, within its deadline.
_MAX_CALLS = 4
# How much of what was told goes in one pipeline.
_BATCH = 256

Command = tuple[Any, ...]  # as redis-py takes it: ("HSET", key, field, value)


class StoreError(Exception):
    """Redis did not answer in time, cannot be reached, or refused; the message says which."""


@dataclass(slots=True)
class StoreCounts:
    """What happened since the start. A command that Redis refused (a wrong type, no memory) is `refused`."""

    calls: int = 0
    late: int = 0  # answered after the caller's deadline, or never
    failed: int = 0
    refused: int = 0
    skipped: int = 0  # not even asked, since the breaker was open
    dropped: int = 0  # told, and never written, since the queue was full
    seconds: float = 0.0  # of all calls that were answered


class Script:
    """A Lua script; `command` calls it by its digest, and the store loads it where Redis does not know it."""

    __slots__ = ("digest", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def command(self, keys: Sequence[str | bytes], arguments: Sequence[Any]) -> Command:
        _SCRIPTS[self.digest] = self
        return ("EVALSHA", self.digest, len(keys), *keys, *arguments)


_SCRIPTS: dict[str, Script] = {}  # by digest, of this process


class Store:
    """One Redis, as one worker uses it. `deadline` is the default patience of `ask`, in seconds."""

    def __init__(
        self,
        address: RedisAddress,
        *,
        deadline: float = 0.005,
        timeout: float = 1.0,
        max_queued: int = 10_000,
        returned: Callable[[], None] = lambda: None,
    ) -> None:
        """`timeout` is how long a reply is waited for by those who do wait; `returned` hears that Redis answers again
        after it had been left alone."""
        self.address = address
        self.deadline = deadline
        self.counts = StoreCounts()
        self._client = connect_async(address, timeout=timeout, connect_timeout=timeout, max_connections=_MAX_CALLS + 4)
        self._pause = Pause()
        self._returned = [returned]
        self._turns = asyncio.Semaphore(_MAX_CALLS)
        self._told: deque[Command] = deque(maxlen=max_queued)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_writing = False
        self._is_closed = False
        self._trial: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        state = "left alone" if self._pause.is_open else "answers"
        return f"<Store {self.address}: {state}, {len(self._told)} told, {len(self._tasks)} under way>"

    @property
    def is_available(self) -> bool:
        """Whether it is worth asking."""
        return not self._pause.is_open

    def on_return(self, returned: Callable[[], None]) -> None:
        """Have this called, too, when Redis answers again after an outage."""
        self._returned.append(returned)

    async def ask(self, commands: Sequence[Command], patience: float | None = None) -> list[Any]:
        """The answers to commands, sent in one pipeline. Where one is refused its answer is a `ResponseError`.

        Raises: StoreError where they do not come within `patience` seconds (None: the store's deadline).
        """
        if self._pause.is_open or self._is_closed:
            self.counts.skipped += 1
            raise StoreError(f"{self.address} is left alone for a while, since it did not answer")
        call = self._spawn(self._call(commands))
        patience = self.deadline if patience is None else patience
        done, _ = await asyncio.wait((call,), timeout=patience)
        if not done:
            self.counts.late += 1
            self._failed(f"no answer within {patience * 1000:g} ms")
            call.add_done_callback(_forget)
            raise StoreError(f"{self.address} did not answer within {patience * 1000:g} ms")
        answers: list[Any] = call.result()
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
        while (self._told or self._is_writing) and self.is_available and monotonic() < until:
            await asyncio.sleep(0.002)

    async def close(self) -> None:
        """Write what was told, as far as Redis takes it, and hang up."""
        await self.flush()
        self._is_closed = True
        if self._trial is not None:
            self._trial.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(RedisError, OSError, asyncio.TimeoutError):
            await self._client.aclose()

    # Calling

    async def _call(self, commands: Sequence[Command]) -> list[Any]:
        """Raises: StoreError."""
        self.counts.calls += 1
        async with self._turns:
            started_at = monotonic()
            try:
                answers = await self._run(commands)
            except (TimeoutError, RedisError, OSError) as error:
                self.counts.failed += 1
                self._failed(str(error) or type(error).__name__)
                raise StoreError(f"{self.address}: {error or type(error).__name__}") from error
            took = monotonic() - started_at
        self.counts.seconds += took
        for answer in answers:
            if isinstance(answer, ResponseError):
                self.counts.refused += 1
        if took <= self.deadline:
            self._succeeded()
        return answers

    async def _run(self, commands: Sequence[Command]) -> list[Any]:
        answers = await self._pipeline(commands)
        unknown = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if unknown:
            again = await self._pipeline([_in_full(commands[index]) for index in unknown])
            for index, answer in zip(unknown, again, strict=True):
                answers[index] = answer
        return answers

    async def _pipeline(self, commands: Sequence[Command]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception) and not isinstance(answer, ResponseError):
                raise answer
        return answers

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # The breaker

    def _succeeded(self) -> None:
        if self._pause.succeeded():
            _log.info("Redis at %s answers again", self.address)
            for returned in self._returned:
                returned()
            self._write_soon()

    def _failed(self, why: str) -> None:
        now = monotonic()
        if self._pause.failed(now, random.random()):
            _log.warning("Redis at %s is left alone for a while: %s", self.address, why)
        if self._pause.is_open and self._trial is None and not self._is_closed:
            self._try_later()

    def _try_later(self) -> None:
        self._trial = asyncio.get_running_loop().call_later(0.1, self._try)

    def _try(self) -> None:
        """Ask on behalf of all whether Redis is back, once its pause is over."""
        self._trial = None
        if not self._pause.is_open or self._is_closed:
            return
        if self._pause.allows(monotonic()):
            self._spawn(self._ping())
        else:
            self._try_later()

    async def _ping(self) -> None:
        started_at = monotonic()
        try:
            await asyncio.wait_for(self._client.ping(), max(self.deadline, 0.05))
        except (TimeoutError, RedisError, OSError) as error:
            self._failed(str(error) or type(error).__name__)
            return
        if monotonic() - started_at <= self.deadline:
            self._succeeded()
        else:
            self._failed("it answers late")

    # What is told

    def _write_soon(self) -> None:
        if self._told and not self._is_writing and self.is_available and not self._is_closed:
            self._is_writing = True
            self._spawn(self._write())

    async def _write(self) -> None:
        """Write all that was told; what was under way when Redis went away is lost, and counted."""
        try:
            while self._told and self.is_available:
                batch = [self._told.popleft() for _ in range(min(_BATCH, len(self._told)))]
                try:
                    await self._call(batch)
                except StoreError:
                    self.counts.dropped += len(batch)
        finally:
            self._is_writing = False


def _in_full(command: Command) -> Command:
    """A script's call with its text."""
    return ("EVAL", _SCRIPTS[command[1]].text, *command[2:])


def _forget(task: asyncio.Task[Any]) -> None:
    """Nobody waits for its end any more."""
    if not task.cancelled():
        task.exception()
