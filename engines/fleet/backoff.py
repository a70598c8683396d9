"""How long to wait before an agent is started again. Pure: time comes in as an argument."""

from __future__ import annotations

from engines.fleet.spec import BackoffSpec


class Backoff:
    """Pauses that double with each end in a row, and begin anew after a healthy time. It never gives up."""

    def __init__(self, spec: BackoffSpec) -> None:
        self._spec = spec
        self.ends_in_a_row = 0

    def __repr__(self) -> str:
        return f"<Backoff {self.ends_in_a_row} in a row>"

    def ended(self, ready_seconds: float) -> float:
        """Note that a run ended after it was ready for so long; the seconds to wait before the next."""
        if ready_seconds >= self._spec.well_after:
            self.ends_in_a_row = 0
        self.ends_in_a_row += 1
        doublings = min(self.ends_in_a_row - 1, 32)
        return min(self._spec.first * 2.0**doublings, self._spec.longest)
