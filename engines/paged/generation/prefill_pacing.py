"""How many rows of prompts a step may hold while others decode: by what steps have cost so far.

A step of d decoding rows and p rows of prompts takes about a + b * p seconds; both are learnt from steps as they
come. p is chosen so that nobody's next token comes later than `stretch` times what it would without.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest step
_FIRST_ROWS = 64  # until both are known
_FIRST_COST = 0.05  # of a row, in steps


class Pacing:
    """Learns from each step, and answers before each."""

    def __init__(self, stretch: float, least: int, most: int) -> None:
        """Rows: never below `least`, so that prompts go on, nor above `most`, the budget of a step."""
        self._stretch = stretch
        self._least = least
        self._most = most
        self._decode_seconds: float | None = None
        self._row_seconds: float | None = None

    def __repr__(self) -> str:
        return f"<Pacing {self._decode_seconds} s a step, {self._row_seconds} s a row>"

    def prefill_rows(self) -> int:
        """Rows of prompts that the next step may hold beside rows of decoding."""
        if self._decode_seconds is None or not self._row_seconds:
            return min(self._most, max(self._least, _FIRST_ROWS))
        rows = int((self._stretch - 1) * self._decode_seconds / self._row_seconds)
        return min(self._most, max(self._least, rows))

    def guess_cost(self, draft_seconds: float) -> float | None:
        """What one guess costs, in steps that decode: a row more, and what a draft model takes to make it. None before
        the first step that only decodes."""
        if not self._decode_seconds:
            return None
        row_seconds = _FIRST_COST * self._decode_seconds if self._row_seconds is None else self._row_seconds
        return (row_seconds + draft_seconds) / self._decode_seconds

    @property
    def row_seconds(self) -> float:
        """Of one row of a prompt; 0 while that is not known."""
        return self._row_seconds or 0.0

    def learn(self, num_decodes: int, num_prefill_rows: int, seconds: float) -> None:
        """A step has taken so long."""
        if not num_prefill_rows:
            self._decode_seconds = _mean(self._decode_seconds, seconds)
        elif not num_decodes:
            if num_prefill_rows >= _FIRST_ROWS:
                self._row_seconds = _mean(self._row_seconds, seconds / num_prefill_rows)
        elif self._decode_seconds is not None:
            more = max(0.0, seconds - self._decode_seconds) / num_prefill_rows
            self._row_seconds = _mean(self._row_seconds, more)


def _mean(old: float | None, new: float) -> float:
    if old is None:
        return new
    # One step that was held up by something else does not count for more than twice.
    return old + _WEIGHT * (min(new, 2 * old) - old)
