"""What a request holds of its limits: a grant, or the hope for one."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.limits.account import Account
from gateway.limits.limit_key import LimitedRequest
from gateway.protocol.errors import GatewayError

# An answer that has come in time may be a few turns of the event loop away from who waits for it, and in a busy loop a
# turn takes as long as the deadline.
_TURNS_OF_GRACE = 10


class PendingRequest(LimitedRequest, Protocol):
    """A request that can wait."""

    def admitted(self, grant: Grant) -> None: ...

    def refused(self, error: GatewayError) -> None: ...


class GrantSource(Protocol):
    """Where grants come from; see `Limiter`."""

    def leave(self, accounts: list[Account], tokens: int, used_tokens: int) -> None: ...

    def charge(self, accounts: list[Account], now: float) -> None: ...

    def resume(self, pending: Pending, *, is_late: bool) -> None: ...


class Grant:
    """Lets a request go. Whoever has it ends it, once; where no tokens are counted it is the same for many requests."""

    __slots__ = ("_accounts", "_limiter", "tokens")

    is_waiting = False

    def __init__(self, limiter: GrantSource, accounts: list[Account], tokens: int | None) -> None:
        self._limiter = limiter
        self._accounts = accounts
        self.tokens = tokens  # that were taken; None where no limit counts them

    def __repr__(self) -> str:
        return f"<Grant of {', '.join(account.spec.name for account in self._accounts)}>"

    def end(self, used_tokens: int = 0) -> None:
        """The request is over, and has used so many tokens."""
        self._limiter.leave(self._accounts, self.tokens or 0, used_tokens)

    def again(self, now: float) -> None:
        """One more request under the same grant, as a stream brings them.

        Raises: GatewayError where the limit on requests is reached.
        """
        self._limiter.charge(self._accounts, now)


class Pending:
    """A request that waits for an answer of Redis, no longer than the store's deadline, or for its turn, no longer than
    the limit says."""

    __slots__ = (
        "_queued",
        "_timer",
        "accounts",
        "asker",
        "is_late",
        "is_over",
        "limiter",
        "num_open",
        "rounds",
        "since",
        "tokens",
    )

    is_waiting = True

    def __init__(
        self,
        limiter: GrantSource,
        accounts: list[Account],
        tokens: int | None,
        asker: PendingRequest,
        now: float,
    ) -> None:
        self.limiter = limiter
        self.accounts = accounts
        self.tokens = tokens
        self.asker = asker
        self.since = now
        self.num_open = 0  # accounts whose answer is to come
        self.rounds = 0  # of asking
        self.is_late = False  # some answer was none
        self.is_over = False
        self._queued: Account | None = None  # where it waits for its turn
        self._timer: asyncio.TimerHandle | None = None
        for account in accounts:
            account.counts.waited += 1

    def __repr__(self) -> str:
        return f"<Pending {'for its turn' if self._queued is not None else f'for {self.num_open} accounts'}>"

    def ask(self, accounts: list[Account], deadline: float) -> None:
        """Wait for the answers for these accounts, so many seconds."""
        for account in accounts:
            account.waiting.append(self)
        self.num_open += len(accounts)
        if not self.rounds:
            self._timer = asyncio.get_running_loop().call_later(deadline, self._expired)
        self.rounds += 1

    def queue(self, account: Account, wait: float) -> None:
        """Wait for a turn that may come in so many seconds."""
        self._leave_line()
        self._queued = account
        account.num_queued += 1
        self._timer = asyncio.get_running_loop().call_later(wait, self._turn)

    def end(self, used_tokens: int = 0) -> None:
        """Nobody waits any more."""
        self.is_over = True
        self._leave_line()

    def answered(self, *, is_late: bool) -> None:
        """One of the accounts has its answer, or gets none."""
        if self.is_over or self._queued is not None:
            return  # it is of a round that is over
        self.num_open -= 1
        self.is_late = self.is_late or is_late
        if not self.num_open:
            self.limiter.resume(self, is_late=self.is_late)

    def _turn(self) -> None:
        self._leave_line()
        self.limiter.resume(self, is_late=False)

    def _expired(self, turns: int = _TURNS_OF_GRACE) -> None:
        """Redis has not answered in time."""
        if self.is_over or self._queued is not None:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._expired, turns - 1)
            return
        self._leave_line()
        self.limiter.resume(self, is_late=True)

    def _leave_line(self) -> None:
        """Wait for nothing, from the beginning."""
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
