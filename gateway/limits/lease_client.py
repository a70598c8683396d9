"""Asks Redis on behalf of one worker's accounts: many in one pipeline, a few pipelines at a time.

Who waits comes first, so that nobody stands behind thousands of leases that are renewed, and no crowd of them makes
Redis look slow.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine
from itertools import islice
from typing import Any

from gateway.limits.account import Account, QueuedRequest
from gateway.limits.lease_protocol import LEASE_SECONDS, Inquiry, count_me, leave
from gateway.redis.bounded_client import Store, StoreError

# Slots that became free are given back together with those that do so a moment later.
_GIVE_BACK_SECONDS = 0.01
# An account that was used shortly ago keeps what it has borrowed.
_IDLE_SECONDS = 1.0
# Nobody waits for what is asked ahead, so it may take its time.
_PATIENCE_SECONDS = 0.05
_BATCH = 32  # accounts in one pipeline
_MAX_ASKING = 2  # pipelines under way


class Borrower:
    """One worker, as Redis knows it. `counted` hears how many workers there are."""

    def __init__(self, store: Store, clock: Callable[[], float], counted: Callable[[int], None]) -> None:
        self.store = store
        self._clock = clock
        self._counted = counted
        self._me = f"{os.getpid():x}-{random.getrandbits(40):010x}"
        self._first: dict[Account, bool] = {}  # to ask about; -> whether it is idle, and keeps nothing
        self._then: dict[Account, bool] = {}  # the same, where nobody waits
        self._active: set[Account] = set()  # those that may hold something of Redis'
        self._surplus: set[Account] = set()
        self._is_about_to_ask = False
        self._num_asking = 0
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        to_ask = len(self._first) + len(self._then)
        return f"<Borrower {self._me}: {len(self._active)} active, {to_ask} to ask about, {self._num_asking} asking>"

    # Asking

    def ask_soon(self, account: Account, *, is_idle: bool = False) -> None:
        """Ask for an account with all others of this turn of the loop; one that is asking asks again after."""
        (self._first if account.waiting else self._then)[account] = is_idle
        self._go_on()

    def give_back_soon(self, account: Account) -> None:
        """Give its slots back that are not in use, unless they will be."""
        if not self._surplus:
            asyncio.get_running_loop().call_later(_GIVE_BACK_SECONDS, self._give_back)
        self._surplus.add(account)

    def _give_back(self) -> None:
        surplus, self._surplus = self._surplus, set()
        for account in surplus:
            if account.slots is not None and account.slots.has_surplus and self.store.is_available:
                self.ask_soon(account)

    def _go_on(self) -> None:
        is_busy = self._is_closed or self._is_about_to_ask or self._num_asking >= _MAX_ASKING
        if (self._first or self._then) and not is_busy:
            self._is_about_to_ask = True
            asyncio.get_running_loop().call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._is_about_to_ask = False
        if self._is_closed:
            return
        batch: list[tuple[Account, bool]] = []
        for accounts in (self._first, self._then):
            ready = islice((account for account in accounts if not account.is_asking), _BATCH - len(batch))
            for account in list(ready):
                account.is_asking = True
                batch.append((account, accounts.pop(account)))
        if batch:
            self._num_asking += 1
            self._spawn(self._ask(batch))
            self._go_on()

    async def _ask(self, batch: list[tuple[Account, bool]]) -> None:
        now = self._clock()
        inquiries = [Inquiry(account, self._me, now, is_idle=is_idle) for account, is_idle in batch]
        waiting: list[list[QueuedRequest]] = []
        for account, _ in batch:
            waiting.append(account.waiting)
            account.waiting = []
        commands = [command for inquiry in inquiries for command in inquiry.commands]
        said: list[bool] = []
        try:
            answers = iter(await self.store.ask(commands, max(self.store.deadline, _PATIENCE_SECONDS)))
            now = self._clock()
            said = [inquiry.answered(answers, now) for inquiry in inquiries]
            self._active.update(account for account, _ in batch)
        except StoreError:
            said = [False] * len(batch)
        finally:
            self._num_asking -= 1
            for account, _ in batch:
                account.is_asking = False
        for (account, _), requests, is_said in zip(batch, waiting, said, strict=True):
            if not is_said and account.slots is not None:
                account.slots.lost()
            for request in requests:
                request.answered(is_late=not is_said)
        self._go_on()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Upkeep

    def sweep(self, now: float) -> None:
        """Called about once a second: renew leases, give back what lies idle, be counted."""
        if not self.store.is_available:
            return
        self._spawn(self._be_counted())
        for account in list(self._active):
            if not account.holds and not account.is_in_use:
                self._active.discard(account)
            elif now - account.used_at > _IDLE_SECONDS and not account.is_in_use:
                self.ask_soon(account, is_idle=True)
            elif account.slots is not None and now - account.slots.renewed_at > LEASE_SECONDS / 4:
                self.ask_soon(account)

    async def _be_counted(self) -> None:
        try:
            [found] = await self.store.ask([count_me(self._me)], _PATIENCE_SECONDS)
        except StoreError:
            return
        if isinstance(found, int):
            self._counted(max(1, found))

    def close(self) -> None:
        """Give back all that is borrowed, so that nobody has to wait for leases to end, and ask for nothing more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        now = self._clock()
        for account in self._active:
            self.store.tell(*Inquiry(account, self._me, now, is_idle=True).commands)
        self.store.tell(leave(self._me))
