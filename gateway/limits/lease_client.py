"""Borrows from Redis for one worker's accounts: many accounts in one pipeline, a few pipelines at a time.

Accounts with waiting requests come first, so that they never queue behind thousands of lease renewals.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Iterator
from itertools import islice
from typing import Any

from gateway.limits.account import Account, QueuedRequest
from gateway.limits.local_allowance import LocalAllowance
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Command, Script, StoreError

# A worker's slots expire after this time without renewal.
LEASE_SECONDS = 5.0
# A worker is no longer counted after this time without registration.
MEMBER_SECONDS = 6.0

# KEYS: a bucket. ARGV: tokens per second, size, wanted, least, returned. Replies: granted, milliseconds until `least`
# is available (0: now). A bucket expires when it would be full again, because a new one begins full.
BORROW = Script(
    """
    local time = redis.call('TIME')
    local now = time[1] * 1000 + time[2] / 1000
    local rate, full = tonumber(ARGV[1]), tonumber(ARGV[2])
    local want, least, back = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
    local kept = redis.call('HMGET', KEYS[1], 'level', 'at')
    local level = tonumber(kept[1]) or full
    local since = tonumber(kept[2]) or now
    level = math.max(-full, math.min(full, level + math.max(0, now - since) / 1000 * rate + back))
    local granted, wait = 0, 0
    if level >= least then
      granted = math.max(0, math.min(want, math.floor(level)))
      level = level - granted
    end
    if granted < want then
      wait = math.max(1, math.ceil((math.max(1, least) - level) / rate * 1000))
    end
    redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.3f', now))
    redis.call('PEXPIRE', KEYS[1], math.ceil((full - level) / rate * 1000) + 10000)
    return {tostring(granted), wait}
    """
)

# KEYS: the leases of one limit, by worker. ARGV: the worker, in use, wanted, the limit, lease in ms, sequence.
# Replies: how many the worker holds now. Slots in use are always granted: their requests are active.
HOLD = Script(
    """
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local me, used, want = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
    local limit, lease, sequence = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
    local others = 0
    local leases = redis.call('HGETALL', KEYS[1])
    for index = 1, #leases, 2 do
      local held, ends, number = string.match(leases[index + 1], '(%d+):(%d+):(%d+)')
      if leases[index] == me then
        if tonumber(number) > sequence then return tonumber(held) end
      elseif tonumber(ends) <= now then
        redis.call('HDEL', KEYS[1], leases[index])
      else
        others = others + tonumber(held)
      end
    end
    local held = math.max(used, math.min(want, limit - others))
    redis.call('HSET', KEYS[1], me, string.format('%d:%.0f:%d', held, now + lease, sequence))
    redis.call('PEXPIRE', KEYS[1], lease * 2)
    return held
    """
)

# KEYS: the workers. ARGV: a worker, milliseconds until it expires (0: remove it). Replies: the number of workers.
COUNT = Script(
    """
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    if tonumber(ARGV[2]) > 0 then
      redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
      redis.call('PEXPIRE', KEYS[1], ARGV[2])
    else
      redis.call('ZREM', KEYS[1], ARGV[1])
    end
    return redis.call('ZCARD', KEYS[1])
    """
)


_MEMBERS = "pointsman:1:limits:members"


class LeaseRequest:
    """The commands of one account and the objects that their replies go to, which are those of the rules at the time of
    the request."""

    __slots__ = ("_allowances", "_slots", "_wanted", "account", "commands")

    def __init__(self, account: Account, me: str, now: float, *, is_idle: bool) -> None:
        self.account = account
        requests, tokens, self._wanted = account.borrow_request(now, is_idle=is_idle)
        self.commands: list[Command] = []
        self._allowances: list[LocalAllowance] = []
        key = account.key
        for name, allowance, borrow in (("requests", account.requests, requests), ("tokens", account.tokens, tokens)):
            if allowance is not None and borrow is not None and (borrow.want or borrow.back):
                amounts = [repr(allowance.rate), repr(allowance.full), borrow.want, borrow.least, borrow.back]
                self.commands.append(BORROW.command([f"{key}:{name}"], amounts))
                self._allowances.append(allowance)
        self._slots = slots = account.slots
        if slots is not None:
            lease = int(LEASE_SECONDS * 1000)
            arguments = [me, slots.in_use, self._wanted, slots.limit, lease, slots.sequence]
            self.commands.append(HOLD.command([f"{key}:slots"], arguments))

    def answered(self, answers: Iterator[Any], now: float) -> bool:
        """Apply the replies. Returns whether Redis answered all commands (it refuses some when its memory is full)."""
        is_complete = True
        for allowance in self._allowances:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_complete = False
            else:
                allowance.granted(float(answer[0]), float(answer[1]) / 1000, now)
        if self._slots is not None:
            answer = next(answers)
            if isinstance(answer, Exception):
                is_complete = False
            else:
                self._slots.granted(int(answer), self._wanted, now)
        return is_complete


# Free slots are returned in batches.
_GIVE_BACK_SECONDS = 0.01
# An account that was used within this time keeps its borrowed allowance.
_IDLE_SECONDS = 1.0
# The deadline of calls that no request waits for.
_BACKGROUND_DEADLINE_SECONDS = 0.05
_BATCH = 32  # accounts in one pipeline
_MAX_PIPELINES = 2  # at the same time


class LeaseClient:
    """One worker, as Redis knows it. `counted` is called with the number of workers."""

    def __init__(self, store: BoundedRedis, clock: Callable[[], float], counted: Callable[[int], None]) -> None:
        self.store = store
        self._clock = clock
        self._counted = counted
        self._worker_id = f"{os.getpid():x}-{random.getrandbits(40):010x}"
        self._first: dict[Account, bool] = {}  # accounts to borrow for -> whether it is idle, and returns everything
        self._then: dict[Account, bool] = {}  # the same, without waiting requests
        self._active: set[Account] = set()  # accounts that may hold allowance of Redis
        self._surplus: set[Account] = set()
        self._is_scheduled = False
        self._num_pipelines = 0
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        state = f"{len(self._active)} active, {len(self._first) + len(self._then)} queued"
        return f"<LeaseClient {self._worker_id}: {state}, {self._num_pipelines} in flight>"

    # Borrowing

    def borrow_soon(self, account: Account, *, is_idle: bool = False) -> None:
        """Borrow for an account, in one pipeline with all others of this turn of the loop."""
        (self._first if account.waiting else self._then)[account] = is_idle
        self._go_on()

    def give_back_soon(self, account: Account) -> None:
        """Return its unused slots, unless they are used within a moment."""
        if not self._surplus:
            asyncio.get_running_loop().call_later(_GIVE_BACK_SECONDS, self._give_back)
        self._surplus.add(account)

    def _give_back(self) -> None:
        surplus, self._surplus = self._surplus, set()
        for account in surplus:
            if account.slots is not None and account.slots.has_surplus and self.store.is_available:
                self.borrow_soon(account)

    def _go_on(self) -> None:
        is_busy = self._is_closed or self._is_scheduled or self._num_pipelines >= _MAX_PIPELINES
        if (self._first or self._then) and not is_busy:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_batch)

    def _send_batch(self) -> None:
        self._is_scheduled = False
        if self._is_closed:
            return
        batch: list[tuple[Account, bool]] = []
        for accounts in (self._first, self._then):
            ready = islice((account for account in accounts if not account.is_borrowing), _BATCH - len(batch))
            for account in list(ready):
                account.is_borrowing = True
                batch.append((account, accounts.pop(account)))
        if batch:
            self._num_pipelines += 1
            self._spawn(self._borrow(batch))
            self._go_on()

    async def _borrow(self, batch: list[tuple[Account, bool]]) -> None:
        now = self._clock()
        inquiries = [LeaseRequest(account, self._worker_id, now, is_idle=is_idle) for account, is_idle in batch]
        waiting: list[list[QueuedRequest]] = []
        for account, _ in batch:
            waiting.append(account.waiting)
            account.waiting = []
        commands = [command for inquiry in inquiries for command in inquiry.commands]
        results: list[bool] = []
        try:
            answers = iter(await self.store.call(commands, max(self.store.deadline, _BACKGROUND_DEADLINE_SECONDS)))
            now = self._clock()
            results = [inquiry.answered(answers, now) for inquiry in inquiries]
            self._active.update(account for account, _ in batch)
        except StoreError:
            results = [False] * len(batch)
        finally:
            self._num_pipelines -= 1
            for account, _ in batch:
                account.is_borrowing = False
        for (account, _), requests, is_complete in zip(batch, waiting, results, strict=True):
            if not is_complete and account.slots is not None:
                account.slots.held = 0  # the lease is unknown: borrow before the next request
            for request in requests:
                request.answered(is_late=not is_complete)
        self._go_on()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Upkeep

    def sweep(self, now: float) -> None:
        """Called about once a second: renew leases, return idle allowance, register this worker."""
        if not self.store.is_available:
            return
        self._spawn(self._be_counted())
        for account in list(self._active):
            if not account.holds and not account.is_in_use:
                self._active.discard(account)
            elif now - account.used_at > _IDLE_SECONDS and not account.is_in_use:
                self.borrow_soon(account, is_idle=True)
            elif account.slots is not None and now - account.slots.renewed_at > LEASE_SECONDS / 4:
                self.borrow_soon(account)

    async def _be_counted(self) -> None:
        try:
            registration = COUNT.command([_MEMBERS], [self._worker_id, int(MEMBER_SECONDS * 1000)])
            [reply] = await self.store.call([registration], _BACKGROUND_DEADLINE_SECONDS)
        except StoreError:
            return
        if isinstance(reply, int):
            self._counted(max(1, reply))

    def close(self) -> None:
        """Return everything that is borrowed, so that other workers need not wait for leases to expire, and stop."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        now = self._clock()
        for account in self._active:
            self.store.enqueue(*LeaseRequest(account, self._worker_id, now, is_idle=True).commands)
        self.store.enqueue(COUNT.command([_MEMBERS], [self._worker_id, 0]))
