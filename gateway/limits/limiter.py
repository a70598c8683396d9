"""Admits the requests of one worker.

What is borrowed is spent without waiting. A request for which nothing is at hand waits for Redis, no longer than the
store's deadline; all that wait at a moment go in one pipeline. Where Redis is away, or late, each worker enforces its
own share by itself, so that a limit is never lifted and never a wall.

What may be admitted by all workers in any time is `burst + rate * time`, and beyond that at most what each has borrowed
ahead: a twentieth of the burst, at least 1. Slots are exact. When Redis goes away, the workers' own buckets begin full:
one more burst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import ceil
from time import monotonic

from gateway.limits.account import Account
from gateway.limits.lease_client import Borrower
from gateway.limits.limit import Limit
from gateway.limits.limit_key import LimitedRequest
from gateway.limits.local_allowance import Say, Slack
from gateway.limits.pending import Grant, Pending, PendingRequest
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.redis.bounded_client import Store


def refusal(account: Account, tokens: int, now: float, is_shared: bool) -> GatewayError:
    """The error for a request that may not go; its fields are those of OpenAI's API."""
    spec = account.spec
    fields: list[tuple[bytes, bytes]] = []
    reached, wait = f"{spec.concurrency} requests at the same time", 1.0
    for slack, amount, what, told in (
        (account.tokens, tokens, b"tokens", f"{spec.tokens_per_minute} tokens per minute"),
        (
            account.requests,
            1,
            b"requests",
            f"{spec.requests_per_second:g} requests per second" if account.requests else "",
        ),
    ):
        if slack is None:
            continue
        if not slack.has(min(amount, slack.full), now, is_shared):
            reached, wait = told, slack.wait(amount, now, is_shared)
        fields += _told(slack, amount, what, now, is_shared)
    fields.insert(0, (b"retry-after", b"%d" % max(1, ceil(wait))))
    fields.insert(1, (b"retry-after-ms", b"%d" % max(1, ceil(wait * 1000))))
    per = f" per {', '.join(spec.per)}" if spec.per else ""
    message = f"limit '{spec.name}' is reached ({reached}{per}): try again in {_duration(wait)}"
    return GatewayError(ErrorKind.RATE_LIMITED, message, tuple(fields))


def _told(slack: Slack, amount: float, what: bytes, now: float, is_shared: bool) -> list[tuple[bytes, bytes]]:
    left = slack.allowance if is_shared else slack.own.level(now)
    reset = _duration(slack.wait(amount, now, is_shared)).replace(" ", "").encode("ascii")
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % slack.full),
        (b"x-ratelimit-remaining-" + what, b"%d" % max(0, int(left))),
        (b"x-ratelimit-reset-" + what, reset),
    ]


def _duration(seconds: float) -> str:
    """As OpenAI tells it: 12ms, 3.4s, 2m3s."""
    if seconds < 1:
        return f"{max(1, ceil(seconds * 1000))}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"


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
        self._limits: dict[str, Limit] = {}
        self._borrower: Borrower | None = None
        if store is not None:
            self._borrower = Borrower(store, clock, self._counted)
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
        """Enforce these from now on, by name; what those of the same names know stays known."""
        now = self._clock()
        for name, limit in limits.items():
            before = self._limits.get(name)
            if before is not None:
                limit.take_over(before, self.num_workers, now)
        self._limits = limits

    # Admitting

    def admit(self, limits: tuple[Limit, ...], asker: PendingRequest, now: float) -> Grant | Pending:
        """Let a request go, or have it wait: then it is told.

        Raises: GatewayError where a limit is reached.
        """
        borrower = self._borrower
        is_shared = borrower is not None and borrower.store.is_available
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

    def go_on(self, limits: tuple[Limit, ...], asker: LimitedRequest, now: float) -> Grant:
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
                assert self._borrower is not None
                self._borrower.give_back_soon(account)

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
        assert self._borrower is not None
        asked = [account for account in pending.accounts if account.say(pending.tokens or 0, now, is_shared) is Say.ASK]
        pending.ask(asked, self._borrower.store.deadline)
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

    def _ask_soon(self, account: Account, *, is_idle: bool = False) -> None:
        if self._borrower is not None:
            self._borrower.ask_soon(account, is_idle=is_idle)

    # Upkeep

    def sweep(self, now: float) -> None:
        """Called about once a second."""
        if self._borrower is not None and self._limits:
            self._borrower.sweep(now)

    def _counted(self, num_workers: int) -> None:
        """So many workers share from now on."""
        if num_workers != self.num_workers:
            self.num_workers = num_workers
            now = self._clock()
            for limit in self._limits.values():
                for account in limit.accounts.values():
                    account.resize(num_workers, now)

    def _came_back(self) -> None:
        """Redis answers again: it may have forgotten all, and requests under way are restated."""
        for limit in self._limits.values():
            for account in limit.accounts.values():
                if account.slots is not None:
                    account.slots.lost()
                    if account.slots.in_use:
                        self._ask_soon(account)

    def close(self) -> None:
        """Give back all that is borrowed."""
        if self._borrower is not None:
            self._borrower.close()
            self._borrower = None
