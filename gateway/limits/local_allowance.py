"""What one worker may spend of a shared token bucket, and hold of shared concurrency slots, without a call to Redis.

    admit   available >= amount
    borrow  available <  amount             Redis may have more: the request waits for a grant, within the deadline
    reject  Redis has reported none         until the time that it named

A grant covers the waiting requests and a quarter of a second of this worker's use, but at most a twentieth of the
bucket: that, times the workers, may be spent at once beyond the bucket's burst. Without Redis the worker keeps to its
share of the rate. Time is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count


class TokenBucket:
    """Holds up to `full` and gains `rate` per second. It begins full."""

    __slots__ = ("_at", "_level", "full", "rate")

    def __init__(self, rate: float, full: float, now: float) -> None:
        self.rate = rate
        self.full = full
        self._level = full
        self._at = now

    def level(self, now: float) -> float:
        """The current level; negative if more was used than expected."""
        if now > self._at:
            self._level = min(self.full, self._level + (now - self._at) * self.rate)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Remove an amount without a check; a negative one is put back."""
        self._level = min(self.full, self.level(now) - amount)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until `amount` is available, or a full bucket if that is less."""
        return max(0.0, (min(amount, self.full) - self.level(now)) / self.rate)

    def resize(self, rate: float, full: float, now: float) -> None:
        """Set another rate and size."""
        self._level = min(full, self.level(now))
        self.rate, self.full = rate, full


# When all slots are taken, the time until the next call to Redis.
RETRY_SECONDS = 0.02
# What all workers together may keep at hand without using it, of the limit.
_AT_HAND = 8

# Numbers what Redis is told: an order that comes late undoes no later one.
_next_sequence = count(1).__next__


class ConcurrencySlots:
    """One worker's concurrency slots: `held` are leased from Redis, `in_use` belong to active requests.

    Leases expire, so the slots of a worker that died become free. While Redis answers, never more slots are in use than
    the limit allows; without Redis the worker keeps to its own share.
    """

    __slots__ = ("_own", "_reserve", "held", "in_use", "limit", "refused_until", "renewed_at", "sequence")

    def __init__(self, limit: int, num_workers: int) -> None:
        self.limit = limit
        self.held = 0
        self.in_use = 0
        self.refused_until = 0.0
        self.renewed_at = 0.0
        self.sequence = 0
        self.resize(num_workers)

    def check(self, now: float, is_shared: bool) -> AdmissionCheck:
        """Whether one more request is admitted."""
        if not is_shared:
            return AdmissionCheck.ADMIT if self.in_use < self._own else AdmissionCheck.REJECT
        if self.in_use < self.held:
            return AdmissionCheck.ADMIT
        return AdmissionCheck.REJECT if now < self.refused_until else AdmissionCheck.BORROW

    @property
    def has_surplus(self) -> bool:
        """Whether more slots are held than this worker needs."""
        return self.held > self.in_use + self._reserve

    def borrow_request(self, num_waiting: int, *, is_idle: bool = False) -> int:
        """The number of slots to hold; from now on at most that many are used."""
        wanted = self.in_use + num_waiting + (0 if is_idle else self._reserve)
        self.held = min(self.held, wanted)
        self.sequence = _next_sequence()
        return wanted

    def granted(self, held: int, wanted: int, now: float) -> None:
        """Apply a lease: `held` of the `wanted` slots."""
        self.held = held
        self.renewed_at = now
        if held < wanted and held <= self.in_use:
            self.refused_until = now + RETRY_SECONDS

    def resize(self, num_workers: int) -> None:
        """Set the number of workers that share the limit."""
        self._own = max(1, self.limit // num_workers)
        self._reserve = self.limit // (_AT_HAND * num_workers)


# How far ahead a worker borrows, in seconds of its use: eight grants per second cost little.
_HORIZON = 0.25
# The most that it borrows ahead, as a fraction of the bucket: idle workers withhold little from busy ones.
_AHEAD = 0.05
# The shortest period over which the rate of use is measured, in seconds.
_MEASURE = 0.02
# After a refusal, the next call waits until this worker's share of the rate has produced one unit, within these bounds:
# sooner, most requests would wait only to be refused.
_LEAST_WAIT = 0.005
_MOST_WAIT = 0.05
_NEVER = float("-inf")


class AdmissionCheck(Enum):
    """The result of an admission check."""

    ADMIT = "yes"
    BORROW = "ask"
    REJECT = "no"


@dataclass(frozen=True, slots=True)
class BorrowRequest:
    """What a worker borrows from a shared bucket: up to `want`, nothing below `least`; `back` is returned first, and
    negative if the worker has spent more than it had."""

    want: float
    least: float
    back: float


class LocalAllowance:
    """One worker's part of one bucket: `rate` per second, up to `full`."""

    __slots__ = (
        "_demand_rate",
        "_since",
        "ahead",
        "available",
        "demand",
        "full",
        "low",
        "own",
        "rate",
        "refused_until",
    )

    def __init__(self, rate: float, full: float, num_workers: int, now: float) -> None:
        self.rate = rate
        self.full = full
        self.ahead = max(1.0, full * _AHEAD)
        self.available = 0.0
        self.refused_until = 0.0
        self.own = TokenBucket(rate / num_workers, max(1.0, full / num_workers), now)
        self.low = _NEVER  # below this it is time to borrow more
        self.demand = 0.0
        self._demand_rate = 0.0
        self._since = now

    def has(self, amount: float, now: float, is_shared: bool) -> bool:
        """Whether `amount` (at most `full`) can be spent at once."""
        if is_shared:
            return self.available >= amount
        return self.own.level(now) >= min(amount, self.own.full)

    def check(self, amount: float, now: float, is_shared: bool) -> AdmissionCheck:
        """Whether `amount` may be spent now."""
        if self.has(amount, now, is_shared):
            return AdmissionCheck.ADMIT
        if not is_shared:
            return AdmissionCheck.REJECT
        if now < self.refused_until:
            self.demand += amount
            return AdmissionCheck.REJECT
        return AdmissionCheck.BORROW

    def may_owe(self, amount: float, now: float, is_shared: bool) -> bool:
        """Whether `amount` may be spent by a request that cannot wait: what Redis has not granted yet is owed."""
        admission = self.check(amount, now, is_shared)
        return admission is AdmissionCheck.ADMIT or (
            admission is AdmissionCheck.BORROW and self.available - amount >= -self.ahead
        )

    def take(self, amount: float, now: float, is_shared: bool) -> bool:
        """Spend. Returns whether it is time to borrow more."""
        if not is_shared:
            self.own.take(amount, now)
            return False
        self.demand += amount
        self.available = allowance = self.available - amount
        return allowance < self.low

    def put_back(self, amount: float, now: float, is_shared: bool) -> None:
        """Return an amount that was taken and not used; negative: more was used."""
        if is_shared:
            self.available += amount
        else:
            self.own.take(-amount, now)

    def wait(self, amount: float, now: float, is_shared: bool) -> float:
        """Seconds after which another attempt may succeed."""
        return max(0.0, self.refused_until - now) if is_shared else self.own.wait(amount, now)

    # Borrowing

    def borrow_request(self, amounts: list[float], now: float, is_idle: bool = False) -> BorrowRequest:
        """What to borrow for requests that wait for these amounts; an idle account returns everything."""
        elapsed = now - self._since
        if elapsed >= _MEASURE:
            self._demand_rate = self.demand / elapsed
            self.demand, self._since = 0.0, now
        self.low = _NEVER
        back = self.available if is_idle or self.available < 0 else 0.0
        self.available -= back
        ahead = 0 if is_idle else int(min(self._demand_rate * _HORIZON, self.ahead))
        # Fill up to `ahead`, not by it, so that a worker never holds more.
        want = sum(amounts) + ahead - self.available
        least = max(0.0, min(amounts, default=0.0) - self.available)
        return BorrowRequest(max(want, least), least, back)

    def granted(self, granted: float, wait: float, now: float) -> None:
        """Apply a grant of Redis and the seconds until the next one."""
        self.available += granted
        if wait > 0:
            self.refused_until = now + max(wait, _LEAST_WAIT, min(1 / self.own.rate, _MOST_WAIT))
        elif self.available > 1:
            self.low = self.available / 2

    def resize(self, num_workers: int, now: float) -> None:
        """Set the number of workers that share the limit."""
        self.own.resize(self.rate / num_workers, max(1.0, self.full / num_workers), now)
