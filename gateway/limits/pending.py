"""A granted or pending admission."""

from __future__ import annotations

import asyncio
from typing import Protocol

from gateway.limits.account import Account
from gateway.limits.limit_key import LimitedRequest
from gateway.protocol.errors import GatewayError

# A reply that arrived in time may be a few turns of the event loop away, and in a busy loop one turn takes as long as
# the deadline.
_TURNS_OF_GRACE = 10


class PendingRequest(LimitedRequest, Protocol):
    """A request that can wait."""

    def admitted(self, grant: Grant) -> None: ...

    def refused(self, error: GatewayError) -> None: ...


class GrantSource(Protocol):
    """The issuer of grants; see `Limiter`."""

    def leave(self, accounts: list[Account], tokens: int, used_tokens: int) -> None: ...

    def charge(self, accounts: list[Account], now: float) -> None: ...

    def resume(self, pending: Pending, *, is_late: bool) -> None: ...


class Grant:
    """An admitted request's grant. Its holder calls `end` once; without tokens, many requests share one object."""

    __slots__ = ("_accounts", "_limiter", "tokens")

    is_waiting = False

    def __init__(self, limiter: GrantSource, accounts: list[Account], tokens: int | None) -> None:
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


class Pending:
    """A request that waits for Redis, at most for the client's deadline, or for its turn, at most for `max_wait`."""

    __slots__ = (
        "_queued",
        "_timer",
        "accounts",
        "is_late",
        "is_over",
        "limiter",
        "num_open",
        "request",
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
        request: PendingRequest,
        now: float,
    ) -> None:
        self.limiter = limiter
        self.accounts = accounts
        self.tokens = tokens
        self.request = request
        self.since = now
        self.num_open = 0  # accounts without a reply yet
        self.rounds = 0  # of borrowing
        self.is_late = False  # whether a reply failed or was late
        self.is_over = False
        self._queued: Account | None = None  # the account in whose queue it waits
        self._timer: asyncio.TimerHandle | None = None
        for account in accounts:
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

    def _turn(self) -> None:
        self._leave_line()
        self.limiter.resume(self, is_late=False)

    def _expired(self, turns: int = _TURNS_OF_GRACE) -> None:
        """Redis has not replied in time."""
        if self.is_over or self._queued is not None:
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._expired, turns - 1)
            return
        self._leave_line()
        self.limiter.resume(self, is_late=True)

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
