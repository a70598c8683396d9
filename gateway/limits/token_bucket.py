"""A token bucket; time comes in as an argument."""

from __future__ import annotations


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
