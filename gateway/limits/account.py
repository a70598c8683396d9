"""One worker's share of a limit for one key (tenant, API key, session, ...)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from gateway.config.limit_specs import LimitSpec
from gateway.limits.limit_key import LimitKey, digest, shown
from gateway.limits.local_allowance import (
    RETRY_SECONDS,
    AdmissionCheck,
    BorrowRequest,
    ConcurrencySlots,
    LocalAllowance,
)

_A_MINUTE = 60.0
# Rounding must not make a turn of nothing.
_LEAST_TURN_SECONDS = 0.001


class QueuedRequest(Protocol):
    """A request that waits for a grant."""

    tokens: int | None  # the tokens it may use; None if no limit counts tokens

    def answered(self, *, is_late: bool) -> None:
        """Called when Redis has replied for one of its accounts, or failed to."""
        ...


@dataclass(slots=True)
class Counts:
    """Totals since the start."""

    admitted: int = 0
    refused: int = 0
    waited: int = 0  # of both, for a reply of Redis


class Account:
    """The allowances of requests and tokens and the concurrency slots of one key; None where the limit sets no bound.

    A request takes from all of them or from none.
    """

    __slots__ = (
        "counts",
        "grant",
        "is_borrowing",
        "limit_key",
        "num_active",
        "num_queued",
        "requests",
        "slots",
        "spec",
        "tokens",
        "used_at",
        "waiting",
    )

    def __init__(self, spec: LimitSpec, limit_key: LimitKey, num_workers: int, now: float, counts: Counts) -> None:
        """`counts` belong to the limit."""
        self.spec = spec
        self.counts = counts
        self.limit_key = limit_key
        self.requests = (
            LocalAllowance(spec.requests_per_second, spec.full, num_workers, now) if spec.requests_per_second else None
        )
        per_minute = spec.tokens_per_minute
        self.tokens = (
            LocalAllowance(per_minute / _A_MINUTE, float(per_minute), num_workers, now) if per_minute else None
        )
        self.slots = ConcurrencySlots(spec.concurrency, num_workers) if spec.concurrency else None
        self.num_active = 0  # active requests, with or without a slot
        self.used_at = now
        self.waiting: list[QueuedRequest] = []
        self.num_queued = 0  # requests that wait for their turn, without a call to Redis
        self.is_borrowing = False
        self.grant: Any = None  # shared by all requests that have no other limit and count no tokens

    @property
    def shown(self) -> str:
        return shown(self.spec, self.limit_key)

    @property
    def key(self) -> str:
        """The prefix of its Redis keys; the hash tag in braces keeps them on one cluster node."""
        return f"pointsman:1:limit:{{{self.spec.name}:{digest(self.spec, self.limit_key)}}}"

    @property
    def is_in_use(self) -> bool:
        """Whether requests use it or wait for it."""
        return (
            bool(self.waiting)
            or self.is_borrowing
            or self.num_queued > 0
            or (self.slots is not None and self.slots.in_use > 0)
        )

    @property
    def holds(self) -> bool:
        """Whether it holds allowance that other workers could use."""
        allowances = (self.requests, self.tokens)
        return any(allowance is not None and allowance.available != 0 for allowance in allowances) or (
            self.slots is not None and self.slots.held > 0
        )

    def check(self, tokens: int, now: float, is_shared: bool) -> AdmissionCheck:
        """Whether a request that may use `tokens` tokens is admitted."""
        admission = AdmissionCheck.ADMIT
        if self.requests is not None:
            admission = self.requests.check(1.0, now, is_shared)
            if admission is AdmissionCheck.REJECT:
                return admission
        if self.tokens is not None and tokens:
            of_tokens = self.tokens.check(min(tokens, self.tokens.full), now, is_shared)
            if of_tokens is AdmissionCheck.REJECT:
                return of_tokens
            if of_tokens is AdmissionCheck.BORROW:
                admission = of_tokens
        if self.slots is not None:
            of_slots = self.slots.check(now, is_shared)
            if of_slots is not AdmissionCheck.ADMIT:
                return of_slots
        return admission

    def has_at_hand(self) -> bool:
        """Whether a request is admitted without a call to Redis, where Redis decides; never where tokens are
        counted."""
        requests, slots = self.requests, self.slots
        return (
            self.tokens is None
            and (requests is None or requests.available >= 1.0)
            and (slots is None or slots.in_use < slots.held)
        )

    def take_at_hand(self, now: float) -> bool:
        """Admit such a request. Returns whether it is time to borrow more."""
        requests, slots = self.requests, self.slots
        self.counts.admitted += 1
        self.used_at = now
        self.num_active += 1
        if slots is not None:
            slots.in_use += 1
        if requests is None:
            return False
        # `LocalAllowance.take`, inlined: this runs for every request.
        requests.demand += 1.0
        requests.available = allowance = requests.available - 1.0
        return allowance < requests.low

    def take(self, tokens: int, now: float, is_shared: bool) -> bool:
        """Admit a request after `check`. Returns whether it is time to borrow more."""
        self.counts.admitted += 1
        self.used_at = now
        is_low = self.requests is not None and self.requests.take(1.0, now, is_shared)
        if self.tokens is not None and tokens:
            is_low = self.tokens.take(tokens, now, is_shared) or is_low
        self.enter()
        return is_low

    def enter(self) -> None:
        """Count one more active request."""
        self.num_active += 1
        if self.slots is not None:
            self.slots.in_use += 1

    def leave(self) -> None:
        """Count the end of an active request."""
        self.num_active -= 1
        if self.slots is not None:
            self.slots.in_use -= 1

    def turn_in(self, tokens: int, now: float, is_shared: bool) -> float:
        """Seconds after which a refused request may be tried again."""
        wait = 0.0
        for allowance, amount in ((self.requests, 1.0), (self.tokens, float(tokens))):
            if allowance is not None and not allowance.has(min(amount, allowance.full), now, is_shared):
                wait = max(wait, allowance.wait(amount, now, is_shared))
        if self.slots is not None and self.slots.check(now, is_shared) is not AdmissionCheck.ADMIT:
            wait = max(wait, RETRY_SECONDS)  # when a request will end is unknown
        return max(wait, _LEAST_TURN_SECONDS)

    # With Redis

    def borrow_request(self, now: float, *, is_idle: bool) -> tuple[BorrowRequest | None, BorrowRequest | None, int]:
        """What to borrow: requests, tokens, slots to hold; None, or 0, where the limit sets no bound."""
        waiting = [pending.tokens or 0 for pending in self.waiting]
        requests = (
            self.requests.borrow_request([1.0] * len(waiting), now, is_idle) if self.requests is not None else None
        )
        tokens = None
        if self.tokens is not None:
            amounts = [min(float(amount), self.tokens.full) for amount in waiting if amount]
            tokens = self.tokens.borrow_request(amounts, now, is_idle)
        slots = self.slots.borrow_request(len(waiting), is_idle=is_idle) if self.slots is not None else 0
        return requests, tokens, slots

    def resize(self, num_workers: int, now: float) -> None:
        """Set the number of workers that share the limit."""
        for allowance in (self.requests, self.tokens):
            if allowance is not None:
                allowance.resize(num_workers, now)
        if self.slots is not None:
            self.slots.resize(num_workers)

    def use(self, spec: LimitSpec, num_workers: int, now: float) -> None:
        """Continue with a changed limit of the same name: borrowed allowance is dropped, active requests keep their
        slots or take one."""
        fresh = Account(spec, self.limit_key, num_workers, now, self.counts)
        if fresh.slots is not None:
            fresh.slots.in_use = self.num_active
        self.spec, self.requests, self.tokens, self.slots = spec, fresh.requests, fresh.tokens, fresh.slots
        self.grant = None
