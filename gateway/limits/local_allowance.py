"""What one worker may spend of a shared bucket without asking.

    spend  allowance >= amount                   nobody waits
    ask    allowance <  amount                   Redis may have more: a grant is waited for, within the deadline
    refuse Redis has said there is none          until the moment that it has named

A grant is what the waiting requests need, and what this worker spends in a quarter of a second, but at most a twentieth
of the bucket: so much, times the workers, is what may be spent at once beyond the bucket's own burst. Where nobody
shares (no Redis, or it does not answer), the worker keeps to its own share of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import count


class Bucket:
    """Holds up to `full`, and gains `rate` a second. It begins full."""

    __slots__ = ("_at", "_level", "full", "rate")

    def __init__(self, rate: float, full: float, now: float) -> None:
        self.rate = rate
        self.full = full
        self._level = full
        self._at = now

    def __repr__(self) -> str:
        return f"<Bucket {self._level:g} of {self.full:g}, {self.rate:g}/s>"

    def level(self, now: float) -> float:
        """What is in it now; less than nothing where more was used than expected."""
        if now > self._at:
            self._level = min(self.full, self._level + (now - self._at) * self.rate)
            self._at = now
        return self._level

    def take(self, amount: float, now: float) -> None:
        """Whether there is so much was asked before; a negative amount is put back."""
        self._level = min(self.full, self.level(now) - amount)

    def wait(self, amount: float, now: float) -> float:
        """Seconds until there is so much, or as much as it holds."""
        return max(0.0, (min(amount, self.full) - self.level(now)) / self.rate)

    def resize(self, rate: float, full: float, now: float) -> None:
        """Another rate and size from now on."""
        self._level = min(full, self.level(now))
        self.rate, self.full = rate, full


# Where all slots are taken, when Redis is asked again.
ASK_AGAIN_SECONDS = 0.02
# What all workers together may keep at hand without using it, of the limit.
_AT_HAND = 8

# Numbers what Redis is told: an order that comes late undoes no later one.
_next_sequence = count(1).__next__


class Slots:
    """`held` are leased, `in_use` by requests under way."""

    __slots__ = ("_own", "_reserve", "held", "in_use", "limit", "refused_until", "renewed_at", "sequence")

    def __init__(self, limit: int, num_workers: int) -> None:
        self.limit = limit
        self.held = 0
        self.in_use = 0
        self.refused_until = 0.0
        self.renewed_at = 0.0
        self.sequence = 0
        self.resize(num_workers)

    def __repr__(self) -> str:
        return f"<Slots {self.in_use} in use, {self.held} held, of {self.limit}>"

    def say(self, now: float, is_shared: bool) -> Say:
        """Whether one more request may go."""
        if not is_shared:
            return Say.YES if self.in_use < self._own else Say.NO
        if self.in_use < self.held:
            return Say.YES
        return Say.NO if now < self.refused_until else Say.ASK

    @property
    def has_surplus(self) -> bool:
        """Whether more are held than are of use here."""
        return self.held > self.in_use + self._reserve

    def ask(self, num_waiting: int, *, is_idle: bool = False) -> int:
        """How many to hold; from now on no more than that are used."""
        wanted = self.in_use + num_waiting + (0 if is_idle else self._reserve)
        self.held = min(self.held, wanted)
        self.sequence = _next_sequence()
        return wanted

    def told(self, held: int, wanted: int, now: float) -> None:
        """How many Redis has leased, of those that were wanted."""
        self.held = held
        self.renewed_at = now
        if held < wanted and held <= self.in_use:
            self.refused_until = now + ASK_AGAIN_SECONDS

    def lost(self) -> None:
        """Nobody knows what is leased: ask before the next request."""
        self.held = 0

    def resize(self, num_workers: int) -> None:
        """So many workers share from now on."""
        self._own = max(1, self.limit // num_workers)
        self._reserve = self.limit // (_AT_HAND * num_workers)


# How far ahead a worker borrows, in seconds of what it spends: at eight grants a second, what they cost is little.
_HORIZON = 0.25
# The most that it borrows ahead, of what the bucket holds: what idle workers keep from busy ones stays small.
_AHEAD = 0.05
# A rate is measured over at least so long.
_MEASURE = 0.02
# Where Redis has had none, it is asked again once this worker's share of the rate has brought the next, between these:
# of a bucket that others empty, too, most who asked sooner would wait for a refusal.
_LEAST_WAIT = 0.005
_MOST_WAIT = 0.05
_NEVER = float("-inf")


class Say(Enum):
    """Whether something may be spent now."""

    YES = "yes"
    ASK = "ask"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a worker wants of a shared bucket: `want` at best, nothing where there is not even `least`; `back` is what
    it puts in before, negative where it has spent more than it had."""

    want: float
    least: float
    back: float


class Slack:
    """One worker's side of one bucket: `rate` a second, up to `full`."""

    __slots__ = (
        "_demand_rate",
        "_since",
        "ahead",
        "allowance",
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
        self.allowance = 0.0
        self.refused_until = 0.0
        self.own = Bucket(rate / num_workers, max(1.0, full / num_workers), now)
        self.low = _NEVER  # below this it is time to borrow more
        self.demand = 0.0
        self._demand_rate = 0.0
        self._since = now

    def __repr__(self) -> str:
        return f"<Slack {self.allowance:g} of {self.full:g}, {self.rate:g}/s>"

    def has(self, amount: float, now: float, is_shared: bool) -> bool:
        """Whether so much may be spent at once; no amount is more than `full`."""
        if is_shared:
            return self.allowance >= amount
        return self.own.level(now) >= min(amount, self.own.full)

    def say(self, amount: float, now: float, is_shared: bool) -> Say:
        """Whether so much may be spent."""
        if self.has(amount, now, is_shared):
            return Say.YES
        if not is_shared:
            return Say.NO
        if now < self.refused_until:
            self.demand += amount
            return Say.NO
        return Say.ASK

    def may_owe(self, amount: float, now: float, is_shared: bool) -> bool:
        """Whether so much may be spent by whoever cannot wait: what Redis may have, but has not granted, is owed."""
        said = self.say(amount, now, is_shared)
        return said is Say.YES or (said is Say.ASK and self.allowance - amount >= -self.ahead)

    def take(self, amount: float, now: float, is_shared: bool) -> bool:
        """Spend; tells whether it is time to borrow more."""
        if not is_shared:
            self.own.take(amount, now)
            return False
        self.demand += amount
        self.allowance = allowance = self.allowance - amount
        return allowance < self.low

    def put_back(self, amount: float, now: float, is_shared: bool) -> None:
        """So much less was used than was taken; negative: more."""
        if is_shared:
            self.allowance += amount
        else:
            self.own.take(-amount, now)

    def wait(self, amount: float, now: float, is_shared: bool) -> float:
        """Seconds after which it is worth to try again."""
        return max(0.0, self.refused_until - now) if is_shared else self.own.wait(amount, now)

    # Borrowing

    def ask(self, amounts: list[float], now: float, is_idle: bool = False) -> Ask:
        """What to ask for, for requests that wait for these amounts; what is idle keeps nothing."""
        elapsed = now - self._since
        if elapsed >= _MEASURE:
            self._demand_rate = self.demand / elapsed
            self.demand, self._since = 0.0, now
        self.low = _NEVER
        back = self.allowance if is_idle or self.allowance < 0 else 0.0
        self.allowance -= back
        ahead = 0 if is_idle else int(min(self._demand_rate * _HORIZON, self.ahead))
        # Filled up to so much, not by so much: what a worker has at hand is never more.
        want = sum(amounts) + ahead - self.allowance
        least = max(0.0, min(amounts, default=0.0) - self.allowance)
        return Ask(max(want, least), least, back)

    def told(self, granted: float, wait: float, now: float) -> None:
        """What Redis has granted, and how many seconds to wait for the next."""
        self.allowance += granted
        if wait > 0:
            self.refused_until = now + max(wait, _LEAST_WAIT, min(1 / self.own.rate, _MOST_WAIT))
        elif self.allowance > 1:
            self.low = self.allowance / 2

    def resize(self, num_workers: int, now: float) -> None:
        """So many workers share from now on."""
        self.own.resize(self.rate / num_workers, max(1.0, self.full / num_workers), now)
