"""How many prompt rows a step may hold beside decoding rows, by what earlier steps have cost.

A step of d decoding rows and p prompt rows takes about a + b * p seconds; a and b are estimated from each step. p is
chosen so that no token comes later than `stretch` times what it would without prompt rows.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of the newest step
_FIRST_ROWS = 64  # until both are estimated
_FIRST_COST = 0.05  # of a row, in steps


class Pacing:
    """Observes each step, and bounds the prompt rows of the next one."""

    def __init__(self, stretch: float, least: int, most: int) -> None:
        """Prompt rows are at least `least`, so that prompts go on, and at most `most`, the budget of a step."""
        self._stretch = stretch
        self._least = least
        self._most = most
        self._decode_seconds = 0.0
        self.row_seconds = 0.0  # of one prompt row; 0 before it is estimated

    def prefill_rows(self) -> int:
        """Prompt rows that the next step may hold beside decoding rows."""
        if not self._decode_seconds or not self.row_seconds:
            return min(self._most, max(self._least, _FIRST_ROWS))
        rows = int((self._stretch - 1) * self._decode_seconds / self.row_seconds)
        return min(self._most, max(self._least, rows))

    def draft_cost(self, draft_seconds: float) -> float | None:
        """The cost of one drafted token in decoding steps: one more row, and `draft_seconds` of a draft model. None
        before the first step that only decodes."""
        if not self._decode_seconds:
            return None
        row_seconds = self.row_seconds or _FIRST_COST * self._decode_seconds
        return (row_seconds + draft_seconds) / self._decode_seconds

    def observe(self, num_decodes: int, num_prefill_rows: int, seconds: float) -> None:
        """Record how long a step took."""
        if not num_prefill_rows:
            self._decode_seconds = _mean(self._decode_seconds, seconds)
        elif not num_decodes:
            if num_prefill_rows >= _FIRST_ROWS:
                self.row_seconds = _mean(self.row_seconds, seconds / num_prefill_rows)
        elif self._decode_seconds:
            more = max(0.0, seconds - self._decode_seconds) / num_prefill_rows
            self.row_seconds = _mean(self.row_seconds, more)


def _mean(old: float, new: float) -> float:
    """A single delayed step counts for at most twice the mean."""
    return old + _WEIGHT * (min(new, 2 * old) - old) if old else new
