"""Borrows from Redis for one worker's accounts: many accounts in one pipeline, a few pipelines at a time.

Accounts with waiting requests come first, so that they never queue behind thousands of lease renewals.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from gateway.limits.account import Account, QueuedRequest
from gateway.limits.lease_protocol import LEASE_SECONDS, LeaseRequest, leave, register
from gateway.redis.bounded_client import Store
from gateway.redis.command import StoreError

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

    def __init__(self, store: Store, clock: Callable[[], float], counted: Callable[[int], None]) -> None:
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
                account.slots.lost()
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
            [reply] = await self.store.call([register(self._worker_id)], _BACKGROUND_DEADLINE_SECONDS)
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
        self.store.enqueue(leave(self._worker_id))
