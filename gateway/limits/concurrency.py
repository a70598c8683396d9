"""What one worker holds of a limit on requests at the same time.

Slots are leased in Redis under the worker's name: what a worker that died held is free when its lease ends. While
Redis answers, no more are ever in use than the limit says: a request without a free slot at hand waits for one to be
leased. Where nobody shares, the worker keeps to its own share.
"""

from __future__ import annotations

from itertools import count

from gateway.limits.local_allowance import Say

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
