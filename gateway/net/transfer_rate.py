"""The rate at which a peer sends, or reads, what it owes."""

from __future__ import annotations

# How long a transfer may take before its rate counts.
_GRACE_SECONDS = 15.0


def is_too_slow(rate: int, num_bytes: int, seconds: float) -> bool:
    """Whether a transfer has been slower than `rate` bytes a second, on average."""
    return seconds > _GRACE_SECONDS and num_bytes < rate * seconds


class TransferRate:
    """One transfer, from its first check on. `left` is a figure that falls with each byte, and may rise by what is
    added."""

    __slots__ = ("_left", "_num_bytes", "_since", "subject")

    def __init__(self, subject: object, left: int, now: float) -> None:
        """`subject` is what is transferred: another one has another rate."""
        self.subject = subject
        self._left = left
        self._num_bytes = 0
        self._since = now

    def is_below(self, rate: int, left: int, now: float) -> bool:
        """Whether it has been slower than `rate` bytes a second on average, up to now."""
        self._num_bytes += max(0, self._left - left)
        self._left = left
        return is_too_slow(rate, self._num_bytes, now - self._since)
