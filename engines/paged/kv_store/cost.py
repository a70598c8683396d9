"""Whether a fetch is cheaper than to compute: tokens / prefill rate > bytes / bandwidth + round trip.

Both are learnt from what reads took. An estimate that says no is never checked, so it fades: after some refusals the
next fetch is tried, and tells. Pure.
"""

from __future__ import annotations

_WEIGHT = 0.3  # of the newest read
_FADING = 0.9  # what an estimate is multiplied with where it has said no
_SMALL_BYTES = 64 << 10  # a read of fewer bytes tells the round trip, one of more the bandwidth


class ReadCost:
    """Seconds that reads take. Threads may learn at the same time: an estimate is one number, and the last one wins."""

    def __init__(self) -> None:
        self.round_trip_seconds: float | None = None
        self.seconds_per_byte: float | None = None

    def __repr__(self) -> str:
        return f"<ReadCost {self.round_trip_seconds} s + {self.seconds_per_byte} s a byte>"

    def learn(self, num_bytes: int, seconds: float) -> None:
        """A read of so many bytes took so long."""
        if num_bytes < _SMALL_BYTES:
            self.round_trip_seconds = _mean(self.round_trip_seconds, seconds)
            return
        transfer = max(0.0, seconds - (self.round_trip_seconds or 0.0))
        self.seconds_per_byte = _mean(self.seconds_per_byte, transfer / num_bytes)

    def seconds(self, num_bytes: int) -> float:
        """What a read will take, 0 as long as nothing is known."""
        return (self.round_trip_seconds or 0.0) + num_bytes * (self.seconds_per_byte or 0.0)

    def is_worth(self, num_tokens: int, num_bytes: int, prefill_seconds_per_token: float) -> bool:
        """Whether to fetch; yes as long as it is not known what prefill takes (0)."""
        if not prefill_seconds_per_token or num_tokens * prefill_seconds_per_token > self.seconds(num_bytes):
            return True
        if self.round_trip_seconds is not None:
            self.round_trip_seconds *= _FADING
        if self.seconds_per_byte is not None:
            self.seconds_per_byte *= _FADING
        return False


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + _WEIGHT * (new - old)
