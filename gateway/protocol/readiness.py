"""What a server says of its readiness when it is asked."""

from __future__ import annotations

from enum import Enum


class Readiness(Enum):
    """Triton is not ready while any model of it loads, and for good once one has failed to load; its other models serve
    on. So a server that answers is never as far gone as one that does not."""

    READY = "ready"
    UNREADY = "unready"  # it answers, but says that it is not ready: used where nothing better is left
    DOWN = "down"  # it does not answer: never used

    @property
    def badness(self) -> int:
        """0 for the best condition, more for each worse one."""
        return _FROM_BEST_TO_WORST.index(self)


_FROM_BEST_TO_WORST = tuple(Readiness)
