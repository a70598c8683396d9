"""What a store of states is: where it forgets, fails or is slow, its users compute, and nothing else is different."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engines.state.counts import StateCounts
from engines.state.values import State

# Makes a value on the store's own thread; None where it is not worth keeping after all.
Make = Callable[[], State | None]


class StateStore(Protocol):
    """Values by name, for a time. Any thread may call; nothing here raises for what the store does or does not.

    `tenant` is whose values these are: with a secret, those of one tenant open for no other.
    """

    counts: StateCounts

    @property
    def is_paused(self) -> bool:
        """Whether it is left alone for a while, as it did not answer."""
        ...

    def sizes(self, keys: Sequence[str]) -> list[int]:
        """Bytes of each value as it is stored, 0 where there is none. Waits for one answer at most."""
        ...

    def get(self, keys: Sequence[str], tenant: str = "") -> list[State | None]:
        """The values, None for each that is not there or not whole. Waits for one answer at most."""
        ...

    def write(self, key: str, state: State, tenant: str = "") -> bool:
        """Keep a value in place of what is there, now; whether it is kept."""
        ...

    def put(self, key: str, num_bytes: int, make: Make, tenant: str = "") -> bool:
        """Have a value kept that is the same whoever makes it, some time soon. Never waits: where too much is under way
        it is dropped, and where it was written lately nothing is done; whether it will be tried."""
        ...

    def wants(self, key: str, num_bytes: int) -> bool:
        """Whether `put` would try: ask before what it takes is copied."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Forget values, some time soon."""
        ...

    def flush(self, timeout_seconds: float) -> bool:
        """Wait for what was put; whether all of it has been tried."""
        ...

    def close(self) -> None:
        """Give up what was not yet written."""
        ...
