"""Admits the requests of one worker.

Borrowed allowance is spent without waiting. A request without local allowance waits for Redis, at most for the client's
deadline; all requests that wait at a moment share one pipeline. While Redis is unavailable or late, each worker
enforces its own share, so that a limit is never lifted and never blocks everything.

In any period all workers together admit at most `burst + rate * time`, plus what each has borrowed ahead: a twentieth
of the burst, at least 1. Concurrency slots are exact. When Redis becomes unavailable, the workers' own buckets begin
full: one more burst.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import ClassVar, Protocol

from gateway.limits.account import Account
from gateway.limits.lease_client import LeaseClient
from gateway.limits.limit import Limit
from gateway.limits.limit_key import LimitedRequest
from gateway.limits.local_allowance import AdmissionCheck
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.redis.bounded_client import BoundedRedis

# A reply that arrived in time may be a few turns of the event loop away, and in a busy loop one turn takes as long as
# the deadline.
_TURNS_OF_GRACE = 10


class PendingRequest(LimitedRequest, Protocol):
    """A request that can wait."""

    def admitted(self, grant: Grant) -> None: ...

    def refused(self, error: GatewayError) -> None: ...


class Grant:
    """An admitted request's grant. Its holder calls `end` once; without tokens, many requests share one object."""

    __slots__ = ("_accounts", "_limiter", "tokens")

    is_waiting = False

    def __init__(self, limiter: Limiter, accounts: list[Account], tokens: int | None) -> None:
        self._limiter = limiter
        self._accounts = accounts
        self.tokens = tokens  # taken in advance; None if no limit counts tokens

    def end(self, used_tokens: int = 0) -> None:
        """The request has ended and used `used_tokens` tokens."""
        self._limiter.leave(self._accounts, self.tokens or 0, used_tokens)

    def again(self, now: float) -> None:
        """Count one more request of a stream under the same grant.

        Raises: GatewayError if the limit on requests is reached.
        """
        self._limiter.charge(self._accounts, now)


@dataclass(slots=True, eq=False)
class Pending:
    """A request that waits for Redis, at most for the client's deadline, or for its turn, at most for `max_wait`."""

    is_waiting: ClassVar[bool] = True

    limiter: Limiter
    accounts: list[Account]
    tokens: int | None
    request: PendingRequest
    since: float
    num_open: int = 0  # accounts without a reply yet
    rounds: int = 0  # of borrowing
    is_late: bool = False  # whether a reply failed or was late
    is_over: bool = False
    _queued: Account | None = None  # the account in whose queue it waits
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        for account in self.accounts:
            account.counts.waited += 1

    def wait_for(self, accounts: list[Account], deadline: float) -> None:
        """Wait for the replies for these accounts, at most `deadline` seconds."""
        for account in accounts:
            account.waiting.append(self)
        self.num_open += len(accounts)
        if not self.rounds:
            self._timer = asyncio.get_running_loop().call_later(deadline, self._expired)
        self.rounds += 1

    def queue(self, account: Account, wait: float) -> None:
        """Wait `wait` seconds for a turn."""
        self._leave_line()
        self._queued = account
        account.num_queued += 1
        self._timer = asyncio.get_running_loop().call_later(wait, self._turn)

    def end(self, used_tokens: int = 0) -> None:
        """Stop waiting."""
        self.is_over = True
        self._leave_line()

    def answered(self, *, is_late: bool) -> None:
        """Redis has replied for one account, or failed to."""
        if self.is_over or self._queued is not None:
            return  # a reply of an earlier round
        self.num_open -= 1
        self.is_late = self.is_late or is_late
        if not self.num_open:
            self.limiter.resume(self, is_late=self.is_late)

    def _turn(self, is_late: bool = False) -> None:
        self._leave_line()
        self.limiter.resume(self, is_late=is_late)

    def _expired(self, turns: int = _TURNS_OF_GRACE) -> None:
        """Redis has not replied in time."""
        if self.is_over or self._queued is not None:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._expired, turns - 1)
        else:
            self._turn(is_late=True)

    def _leave_line(self) -> None:
        """Leave every queue and reset."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._queued is not None:
            self._queued.num_queued -= 1
            self._queued = None
        for account in self.accounts:
            if self in account.waiting:
                account.waiting.remove(self)
        self.num_open, self.rounds, self.is_late = 0, 0, False


def rejection(account: Account, tokens: int, now: float, is_shared: bool) -> GatewayError:
    """The error for a refused request, with the rate-limit header fields of OpenAI's API."""
    spec = account.spec
    fields: list[tuple[bytes, bytes]] = []
    reached, wait = f"{spec.concurrency} requests at the same time", 1.0
    for allowance, amount, what, text in (
        (account.tokens, tokens, b"tokens", f"{spec.tokens_per_minute} tokens per minute"),
        (
            account.requests,
            1,
            b"requests",
            f"{spec.requests_per_second:g} requests per second" if account.requests else "",
        ),
    ):
        if allowance is None:
            continue
        if not allowance.has(min(amount, allowance.full), now, is_shared):
            reached, wait = text, allowance.wait(amount, now, is_shared)
        remaining = allowance.available if is_shared else allowance.own.level(now)
        reset = _duration(allowance.wait(amount, now, is_shared)).replace(" ", "").encode("ascii")
        fields += [
            (b"x-ratelimit-limit-" + what, b"%d" % allowance.full),
            (b"x-ratelimit-remaining-" + what, b"%d" % max(0, int(remaining))),
            (b"x-ratelimit-reset-" + what, reset),
        ]
    fields.insert(0, (b"retry-after", b"%d" % max(1, ceil(wait))))
    fields.insert(1, (b"retry-after-ms", b"%d" % max(1, ceil(wait * 1000))))
    per = f" per {', '.join(spec.per)}" if spec.per else ""
    message = f"limit '{spec.name}' is reached ({reached}{per}): try again in {_duration(wait)}"
    return GatewayError(ErrorKind.RATE_LIMITED, message, tuple(fields))


def _duration(seconds: float) -> str:
    """OpenAI's format: 12ms, 3.4s, 2m3s."""
    if seconds < 1:
        return f"{max(1, ceil(seconds * 1000))}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"


# Requests of one account that may wait for their turn in one worker.
_MAX_QUEUED = 1000
# How often one request borrows again after another request has taken its grant.
_MAX_ROUNDS = 3


class Limiter:
    """All limits of one worker. `num_workers` share them until Redis reports another number; `store` is None without
    Redis."""

    def __init__(
        self, num_workers: int, store: BoundedRedis | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.num_workers = num_workers
        self._clock = clock
        self._limits: dict[str, Limit] = {}
        self._borrower: LeaseClient | None = None
        if store is not None:
            self._borrower = LeaseClient(store, clock, self._counted)
            store.on_return(self._came_back)

    def __repr__(self) -> str:
        return f"<Limiter {len(self._limits)} limits, one of {self.num_workers}: {self._borrower or 'alone'}>"

    @property
    def limits(self) -> Iterable[Limit]:
        return self._limits.values()

    @property
    def is_shared(self) -> bool:
        """Whether Redis decides."""
        return self._borrower is not None and self._borrower.store.is_available

    def use(self, limits: dict[str, Limit]) -> None:
        """Enforce these limits, by name; a limit of the same name keeps its accounts."""
        now = self._clock()
        for name, limit in limits.items():
            before = self._limits.get(name)
            if before is not None:
                limit.take_over(before, self.num_workers, now)
        self._limits = limits

    # Admitting

    def admit(self, limits: tuple[Limit, ...], request: PendingRequest, now: float) -> Grant | Pending:
        """Admit a request, or let it wait: then its `admitted` or `refused` is called.

        Raises: GatewayError if a limit is reached.
        """
        borrower = self._borrower
        is_shared = borrower is not None and borrower.store.is_available
        accounts: list[Account] = []
        is_at_hand = is_shared
        for limit in limits:
            limit_key = limit.read_key(request)
            account = limit.accounts.get(limit_key)
            if account is None:
                account = self._open(limit, limit_key, now)
            accounts.append(account)
            is_at_hand = is_at_hand and account.has_at_hand()
        if is_at_hand:  # the usual case
            for account in accounts:
                if account.take_at_hand(now):
                    self._borrow_soon(account)
            return self._shared_grant(accounts)
        tokens = request.expected_tokens() if any(account.tokens is not None for account in accounts) else None
        for account in accounts:
            admission = account.check(tokens or 0, now, is_shared)
            if admission is AdmissionCheck.REJECT:
                if not self._may_queue(account, tokens, now, is_shared, now):
                    raise self._rejection(account, tokens, now, is_shared)
                pending = Pending(self, accounts, tokens, request, now)
                pending.queue(account, account.turn_in(tokens or 0, now, is_shared))
                return pending
            if admission is AdmissionCheck.BORROW:
                return self._wait(Pending(self, accounts, tokens, request, now), now)
        return self._grant(accounts, tokens, now, is_shared)

    def _shared_grant(self, accounts: list[Account]) -> Grant:
        """A grant without tokens, which all requests under one limit share."""
        if len(accounts) > 1:
            return Grant(self, accounts, None)
        account = accounts[0]
        if account.grant is None:
            account.grant = Grant(self, accounts, None)
        grant: Grant = account.grant
        return grant

    def _may_queue(self, account: Account, tokens: int | None, now: float, is_shared: bool, since: float) -> bool:
        """Whether a request that arrived at `since` may wait for its turn."""
        max_wait = account.spec.max_wait
        if not max_wait or account.num_queued >= _MAX_QUEUED:
            return False
        return now + account.turn_in(tokens or 0, now, is_shared) <= since + max_wait

    def go_on(self, limits: tuple[Limit, ...], request: LimitedRequest, now: float) -> Grant:
        """A grant for the rest of a request that was admitted before, even if no slot is free."""
        accounts: list[Account] = []
        for limit in limits:
            limit_key = limit.read_key(request)
            account = limit.accounts.get(limit_key) or self._open(limit, limit_key, now)
            accounts.append(account)
            account.enter()
            if account.slots is not None:
                self._borrow_soon(account)
        counts_tokens = any(account.tokens is not None for account in accounts)
        return Grant(self, accounts, 0 if counts_tokens else None)

    def _grant(self, accounts: list[Account], tokens: int | None, now: float, is_shared: bool) -> Grant:
        for account in accounts:
            if account.take(tokens or 0, now, is_shared):
                self._borrow_soon(account)
        return Grant(self, accounts, tokens)

    def _rejection(self, account: Account, tokens: int | None, now: float, is_shared: bool) -> GatewayError:
        account.counts.refused += 1
        return rejection(account, tokens or 0, now, is_shared)

    def _open(self, limit: Limit, limit_key: bytes | tuple[bytes, ...], now: float) -> Account:
        account, evicted = limit.open(limit_key, self.num_workers, now)
        if evicted is not None and evicted.holds and self.is_shared:
            self._borrow_soon(evicted, is_idle=True)
        return account

    def leave(self, accounts: list[Account], tokens: int, used_tokens: int) -> None:
        """Release what a request held."""
        for account in accounts:
            if account.tokens is not None and tokens != used_tokens:
                account.tokens.put_back(tokens - used_tokens, self._clock(), self.is_shared)
            account.leave()
            if account.slots is not None and account.slots.has_surplus and self.is_shared:
                assert self._borrower is not None
                self._borrower.give_back_soon(account)

    def charge(self, accounts: list[Account], now: float) -> None:
        """Count one more request of a stream without waiting: missing allowance is owed.

        Raises: GatewayError if the limit on requests is reached.
        """
        is_shared = self.is_shared
        for account in accounts:
            allowance = account.requests
            if allowance is not None and not allowance.may_owe(1.0, now, is_shared):
                raise self._rejection(account, 0, now, is_shared)
        for account in accounts:
            if account.requests is not None:
                account.counts.admitted += 1
                account.used_at = now
                if account.requests.take(1.0, now, is_shared) or (is_shared and account.requests.available < 1):
                    self._borrow_soon(account)

    # Waiting

    def _wait(self, pending: Pending, now: float) -> Pending:
        is_shared = self.is_shared
        assert self._borrower is not None
        lacking = [
            account
            for account in pending.accounts
            if account.check(pending.tokens or 0, now, is_shared) is AdmissionCheck.BORROW
        ]
        pending.wait_for(lacking, self._borrower.store.deadline)
        for account in lacking:
            self._borrow_soon(account)
        return pending

    def resume(self, pending: Pending, *, is_late: bool) -> None:
        """Decide on a request whose turn has come or whose accounts have their replies; by this worker's share if the
        replies are late."""
        now, is_shared = self._clock(), self.is_shared and not is_late
        tokens = pending.tokens
        for account in pending.accounts:
            admission = account.check(tokens or 0, now, is_shared)
            if admission is AdmissionCheck.BORROW and pending.rounds < _MAX_ROUNDS:
                self._wait(pending, now)
                return
            if admission is not AdmissionCheck.ADMIT:
                if self._may_queue(account, tokens, now, is_shared, pending.since):
                    pending.queue(account, account.turn_in(tokens or 0, now, is_shared))
                    return
                pending.end()
                pending.request.refused(self._rejection(account, tokens, now, is_shared))
                return
        pending.end()
        pending.request.admitted(self._grant(pending.accounts, tokens, now, is_shared))

    def _borrow_soon(self, account: Account, *, is_idle: bool = False) -> None:
        if self._borrower is not None:
            self._borrower.borrow_soon(account, is_idle=is_idle)

    # Upkeep

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        if self._borrower is not None and self._limits:
            self._borrower.sweep(now)

    def _counted(self, num_workers: int) -> None:
        """Set the number of workers that share the limits."""
        if num_workers != self.num_workers:
            self.num_workers = num_workers
            now = self._clock()
            for limit in self._limits.values():
                for account in limit.accounts.values():
                    account.resize(num_workers, now)

    def _came_back(self) -> None:
        """Redis is available again and may have lost everything: report the slots of active requests again."""
        for limit in self._limits.values():
            for account in limit.accounts.values():
                if account.slots is not None:
                    account.slots.held = 0
                    if account.slots.in_use:
                        self._borrow_soon(account)

    def close(self) -> None:
        """Return everything that is borrowed."""
        if self._borrower is not None:
            self._borrower.close()
            self._borrower = None
