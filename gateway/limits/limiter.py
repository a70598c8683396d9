"""Admits the requests of one worker.

What is borrowed is spent without waiting. A request for which nothing is at hand waits for Redis, no longer than the
store's deadline; all that wait at a moment go in one pipeline. Where Redis is away, or late, each worker enforces its
own share by itself, so that a limit is never lifted and never a wall.

What may be admitted by all workers in any time is `burst + rate * time`, and beyond that at most what each has borrowed
ahead: a twentieth of the burst, at least 1. Slots are exact. When Redis goes away, the workers' own buckets begin full:
one more burst.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from time import monotonic
from typing import Any

from gateway.limits.account import Account, Waiting
from gateway.limits.lending import Inquiry, count_me, leave
from gateway.limits.limit import Limit
from gateway.limits.pending import Grant, Pending, Waiter
from gateway.limits.refusal import refusal
from gateway.limits.scripts import LEASE_SECONDS
from gateway.limits.slack import Say
from gateway.limits.who import Asker
from gateway.protocol.errors import GatewayError
from gateway.redis.store import Store, StoreError

# Slots that became free are given back together with those that do so a moment later.
_GIVE_BACK_SECONDS = 0.01
# An account that was used shortly ago keeps what it has borrowed.
_IDLE_SECONDS = 1.0
# Nobody waits for what is asked ahead, so it may take its time.
_PATIENCE_SECONDS = 0.05
# Accounts in one pipeline, and pipelines under way: who waits must not stand behind thousands that are renewed.
_BATCH = 32
_MAX_ASKING = 2
# Requests of one account that may wait for their turn in a worker.
_MAX_QUEUED = 1000
# How often one request asks again where another has taken what it was granted.
_MAX_ROUNDS = 3


class Limiter:
    """All limits of one worker. `num_workers` is how many share them as long as Redis does not say; `store` is None
    where there is no Redis."""

    def __init__(self, num_workers: int, store: Store | None = None, clock: Callable[[], float] = monotonic) -> None:
        self.num_workers = num_workers
        self._clock = clock
        self._store = store
        self._limits: dict[str, Limit] = {}
        self._me = f"{os.getpid():x}-{random.getrandbits(40):010x}"
        self._to_ask: dict[Account, bool] = {}  # -> whether it is idle, and keeps nothing
        self._to_ask_first: dict[Account, bool] = {}  # the same, where somebody waits
        self._active: set[Account] = set()  # those that may hold something of Redis'
        self._surplus: set[Account] = set()
        self._is_asking_soon = False
        self._num_asking = 0
        self._tasks: set[asyncio.Task[None]] = set()
        if store is not None:
            store.on_return(self._came_back)

    def __repr__(self) -> str:
        return (
            f"<Limiter {self._me}: {len(self._limits)} limits, one of {self.num_workers}, {len(self._active)} active>"
        )

    @property
    def limits(self) -> Iterable[Limit]:
        return self._limits.values()

    @property
    def is_shared(self) -> bool:
        """Whether Redis decides."""
        return self._store is not None and self._store.is_available

    def use(self, limits: dict[str, Limit]) -> None:
        """Enforce these from now on, by name; what those of the same names know stays known."""
        now = self._clock()
        for name, limit in limits.items():
            before = self._limits.get(name)
            if before is not None:
                limit.take_over(before, self.num_workers, now)
        self._limits = limits

    # Admitting

    def admit(self, limits: tuple[Limit, ...], asker: Waiter, now: float) -> Grant | Pending:
        """Let a request go, or have it wait: then it is told.

        Raises: GatewayError where a limit is reached.
        """
        store = self._store
        is_shared = store is not None and store.is_available
        accounts: list[Account] = []
        is_at_hand = is_shared
        for limit in limits:
            who = limit.read_who(asker)
            account = limit.accounts.get(who)
            if account is None:
                account = self._open(limit, who, now)
            accounts.append(account)
            is_at_hand = is_at_hand and account.has_at_hand()
        if is_at_hand:  # as mostly
            for account in accounts:
                if account.take_at_hand(now):
                    self._ask_soon(account)
            return self._shared_grant(accounts)
        tokens = asker.expected_tokens() if any(account.tokens is not None for account in accounts) else None
        for account in accounts:
            said = account.say(tokens or 0, now, is_shared)
            if said is Say.NO:
                if not self._may_queue(account, tokens, now, is_shared, now):
                    raise self._refusal(account, tokens, now, is_shared)
                pending = Pending(self, accounts, tokens, asker, now)
                pending.queue(account, account.turn_in(tokens or 0, now, is_shared))
                return pending
            if said is Say.ASK:
                return self._wait(Pending(self, accounts, tokens, asker, now), now)
        return self._grant(accounts, tokens, now, is_shared)

    def _shared_grant(self, accounts: list[Account]) -> Grant:
        """One that counts no tokens, and so is the same for all requests under one limit."""
        if len(accounts) > 1:
            return Grant(self, accounts, None)
        account = accounts[0]
        if account.grant is None:
            account.grant = Grant(self, accounts, None)
        grant: Grant = account.grant
        return grant

    def _may_queue(self, account: Account, tokens: int | None, now: float, is_shared: bool, since: float) -> bool:
        """Whether a request that came at `since` may wait for its turn."""
        max_wait = account.spec.max_wait
        if not max_wait or account.num_queued >= _MAX_QUEUED:
            return False
        return now + account.turn_in(tokens or 0, now, is_shared) <= since + max_wait

    def go_on(self, limits: tuple[Limit, ...], asker: Asker, now: float) -> Grant:
        """The place of the rest of a request that was admitted before, whether there is one free or not."""
        accounts: list[Account] = []
        for limit in limits:
            who = limit.read_who(asker)
            account = limit.accounts.get(who) or self._open(limit, who, now)
            accounts.append(account)
            account.enter()
            if account.slots is not None:
                self._ask_soon(account)
        counts_tokens = any(account.tokens is not None for account in accounts)
        return Grant(self, accounts, 0 if counts_tokens else None)

    def _grant(self, accounts: list[Account], tokens: int | None, now: float, is_shared: bool) -> Grant:
        for account in accounts:
            if account.take(tokens or 0, now, is_shared):
                self._ask_soon(account)
        return Grant(self, accounts, tokens)

    def _refusal(self, account: Account, tokens: int | None, now: float, is_shared: bool) -> GatewayError:
        account.counts.refused += 1
        return refusal(account, tokens or 0, now, is_shared)

    def _open(self, limit: Limit, who: bytes | tuple[bytes, ...], now: float) -> Account:
        account, gone = limit.open(who, self.num_workers, now)
        if gone is not None and gone.holds and self.is_shared:
            self._ask_soon(gone, is_idle=True)
        return account

    def leave(self, accounts: list[Account], tokens: int, used_tokens: int) -> None:
        """A request is over."""
        for account in accounts:
            if account.tokens is not None and tokens != used_tokens:
                account.tokens.put_back(tokens - used_tokens, self._clock(), self.is_shared)
            account.leave()
            if account.slots is not None and account.slots.has_surplus and self.is_shared:
                self._give_back_soon(account)

    def charge(self, accounts: list[Account], now: float) -> None:
        """One more request of a stream, which waits for nothing: what is not at hand it owes.

        Raises: GatewayError where the limit on requests is reached.
        """
        is_shared = self.is_shared
        for account in accounts:
            slack = account.requests
            if slack is not None and not slack.may_owe(1.0, now, is_shared):
                raise self._refusal(account, 0, now, is_shared)
        for account in accounts:
            if account.requests is not None:
                account.counts.admitted += 1
                account.used_at = now
                if account.requests.take(1.0, now, is_shared) or (is_shared and account.requests.allowance < 1):
                    self._ask_soon(account)

    # Waiting

    def _wait(self, pending: Pending, now: float) -> Pending:
        is_shared = self.is_shared
        assert self._store is not None
        asked = [account for account in pending.accounts if account.say(pending.tokens or 0, now, is_shared) is Say.ASK]
        pending.ask(asked, self._store.deadline)
        for account in asked:
            self._ask_soon(account)
        return pending

    def resume(self, pending: Pending, *, is_late: bool) -> None:
        """Decide on a request whose turn has come, or whose accounts have their answers; where these are late, by this
        worker's share."""
        now, is_shared = self._clock(), self.is_shared and not is_late
        tokens = pending.tokens
        for account in pending.accounts:
            said = account.say(tokens or 0, now, is_shared)
            if said is Say.ASK and pending.rounds < _MAX_ROUNDS:
                self._wait(pending, now)
                return
            if said is not Say.YES:
                if self._may_queue(account, tokens, now, is_shared, pending.since):
                    pending.queue(account, account.turn_in(tokens or 0, now, is_shared))
                    return
                pending.end()
                pending.asker.refused(self._refusal(account, tokens, now, is_shared))
                return
        pending.end()
        pending.asker.admitted(self._grant(pending.accounts, tokens, now, is_shared))

    # Asking

    def _ask_soon(self, account: Account, *, is_idle: bool = False) -> None:
        """Ask Redis for an account with all others of this turn of the loop; one that is asking asks again after."""
        (self._to_ask_first if account.waiting else self._to_ask)[account] = is_idle
        self._go_on_asking()

    def _go_on_asking(self) -> None:
        has_any = self._to_ask_first or self._to_ask
        if has_any and not self._is_asking_soon and self._num_asking < _MAX_ASKING:
            self._is_asking_soon = True
            asyncio.get_running_loop().call_soon(self._ask_now)

    def _ask_now(self) -> None:
        self._is_asking_soon = False
        store = self._store
        if store is None:
            return
        batch: list[tuple[Account, bool]] = []
        for accounts in (self._to_ask_first, self._to_ask):
            ready = islice((account for account in accounts if not account.is_asking), _BATCH - len(batch))
            for account in list(ready):
                account.is_asking = True
                batch.append((account, accounts.pop(account)))
        if batch:
            self._num_asking += 1
            self._spawn(self._ask(store, batch))
            self._go_on_asking()

    async def _ask(self, store: Store, batch: list[tuple[Account, bool]]) -> None:
        now = self._clock()
        inquiries = [Inquiry(account, self._me, now, is_idle=is_idle) for account, is_idle in batch]
        waiting: list[list[Waiting]] = []
        for account, _ in batch:
            waiting.append(account.waiting)
            account.waiting = []
        commands = [command for inquiry in inquiries for command in inquiry.commands]
        said: list[bool] = []
        try:
            answers = iter(await store.ask(commands, max(store.deadline, _PATIENCE_SECONDS)))
            now = self._clock()
            said = [inquiry.answered(answers, now) for inquiry in inquiries]
            self._active.update(account for account, _ in batch)
        except StoreError:
            said = [False] * len(batch)
        finally:
            self._num_asking -= 1
            for account, _ in batch:
                account.is_asking = False
        for (account, _), pendings, is_said in zip(batch, waiting, said, strict=True):
            if not is_said and account.slots is not None:
                account.slots.lost()
            for pending in pendings:
                pending.answered(is_late=not is_said)
        self._go_on_asking()

    def _give_back_soon(self, account: Account) -> None:
        if not self._surplus:
            asyncio.get_running_loop().call_later(_GIVE_BACK_SECONDS, self._give_back)
        self._surplus.add(account)

    def _give_back(self) -> None:
        surplus, self._surplus = self._surplus, set()
        for account in surplus:
            if account.slots is not None and account.slots.has_surplus and self.is_shared:
                self._ask_soon(account)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Upkeep

    def sweep(self, now: float) -> None:
        """Called about once a second: renew leases, give back what lies idle, be counted."""
        store = self._store
        if store is None or not self._limits or not store.is_available:
            return
        self._spawn(self._count_workers(store))
        for account in list(self._active):
            if not account.holds and not account.is_in_use:
                self._active.discard(account)
            elif now - account.used_at > _IDLE_SECONDS and not account.is_in_use:
                self._ask_soon(account, is_idle=True)
            elif account.slots is not None and now - account.slots.renewed_at > LEASE_SECONDS / 4:
                self._ask_soon(account)

    async def _count_workers(self, store: Store) -> None:
        try:
            [found] = await store.ask([count_me(self._me)], _PATIENCE_SECONDS)
        except StoreError:
            return
        if isinstance(found, int) and found != self.num_workers:
            self.num_workers = max(1, found)
            now = self._clock()
            for limit in self._limits.values():
                for account in limit.accounts.values():
                    account.resize(self.num_workers, now)

    def _came_back(self) -> None:
        """Redis answers again: it may have forgotten all, and requests under way are restated."""
        for limit in self._limits.values():
            for account in limit.accounts.values():
                if account.slots is not None:
                    account.slots.lost()
                    if account.slots.in_use:
                        self._ask_soon(account)

    def close(self) -> None:
        """Give back all that is borrowed, so that nobody has to wait for leases to end."""
        store, self._store = self._store, None
        for task in self._tasks:
            task.cancel()
        if store is None:
            return
        now = self._clock()
        for account in self._active:
            store.tell(*Inquiry(account, self._me, now, is_idle=True).commands)
        store.tell(leave(self._me))
