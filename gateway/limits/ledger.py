"""What accounts have spent, as the control process knows it: the workers' reports added up, and with Redis those of
all gateways.

Of each account it knows the total that is stored, and the change that is not stored yet. A store takes changes in
numbered batches, so that a batch that is sent twice counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time

from gateway.config.limit_specs import BudgetSpec
from gateway.limits.budget_window import (
    NOTHING_SPENT,
    AccountBounds,
    AccountName,
    Spending,
    SpendingByBudget,
    WindowSpending,
    bounds_of,
    window_of,
)


@dataclass(slots=True)
class LedgerBatch:
    """Changes on their way to the store."""

    number: int
    start: int
    changes: dict[AccountName, Spending]


@dataclass(slots=True)
class LedgerWindow:
    """The current window of one budget."""

    start: int
    end: int
    bounds: AccountBounds
    totals: dict[AccountName, Spending] = field(default_factory=dict)  # stored or not
    unstored: dict[AccountName, Spending] = field(default_factory=dict)  # in no batch yet
    batch: LedgerBatch | None = None  # on its way
    epoch: str = ""  # of the store's totals, as last read: another one has lost them
    version: int = 0  # the same
    floors: dict[AccountName, Spending] = field(default_factory=dict)  # what the store has lost
    unsent: set[AccountName] = field(default_factory=set)  # accounts whose totals workers do not know


class Ledger:
    """The current windows of all budgets of the rules, by their ids."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._windows: dict[str, LedgerWindow] = {}
        self._last_batch = 0

    def __repr__(self) -> str:
        num_accounts = sum(len(window.totals) for window in self._windows.values())
        return f"<Ledger {len(self._windows)} budgets, {num_accounts} accounts>"

    def use(self, specs: Sequence[BudgetSpec], *, is_verified: bool = False) -> None:
        """Keep the budgets of these rules. `is_verified`: they have `auth:`."""
        now = self._clock()
        known, self._windows = self._windows, {}
        for spec in specs:
            bounds = AccountBounds(spec.per, is_verified=is_verified)
            window = known.get(spec.id) or LedgerWindow(*bounds_of(window_of(spec.id), now), bounds)
            window.bounds = bounds
            for name in window.totals:
                bounds.count(name)
            window.unsent.update(window.totals)
            self._windows[spec.id] = window
        self.roll()

    @property
    def ids(self) -> list[str]:
        return list(self._windows)

    def roll(self) -> None:
        """Begin the windows of this moment."""
        now = self._clock()
        for id, window in self._windows.items():
            if now >= window.end:
                window.bounds.clear()
                self._windows[id] = LedgerWindow(*bounds_of(window_of(id), now), window.bounds)

    def add(self, spent: SpendingByBudget) -> None:
        """Add what a worker reports; of a window that has ended it does not matter any more."""
        self.roll()
        for id, (start, accounts) in spent.items():
            window = self._windows.get(id)
            if window is not None and window.start == start:
                for name, change in accounts.items():
                    self._change(window, name, change)

    def _change(self, window: LedgerWindow, name: AccountName, change: Spending) -> None:
        name = window.bounds.place(name, window.totals.keys())
        self._set_total(window, name, window.totals.get(name, NOTHING_SPENT).plus(change))
        window.unstored[name] = window.unstored.get(name, NOTHING_SPENT).plus(change)
        window.unsent.add(name)

    def _set_total(self, window: LedgerWindow, name: AccountName, total: Spending) -> None:
        if name not in window.totals:
            window.bounds.count(name)
        window.totals[name] = total

    def reset(self, id: str, name: AccountName) -> Spending | None:
        """Have an account start over. Returns: what it had spent; None where it is unknown."""
        window = self._windows[id]
        total = window.totals.get(name)
        if total is not None:
            self._change(window, name, total.negated())
        return total

    # What workers know

    def totals(self) -> dict[str, WindowSpending]:
        """All totals."""
        self.roll()
        return {id: WindowSpending(window.start, window.totals) for id, window in self._windows.items()}

    def take_unsent(self) -> dict[str, WindowSpending]:
        """The totals that have changed since the last time."""
        changed: dict[str, WindowSpending] = {}
        for id, window in self._windows.items():
            if window.unsent:
                totals = {name: window.totals.get(name, NOTHING_SPENT) for name in window.unsent}
                changed[id] = WindowSpending(window.start, totals)
                window.unsent = set()
        return changed

    def bounds(self, id: str) -> tuple[int, int]:
        """The start and the end of a budget's current window."""
        window = self._windows[id]
        return window.start, window.end

    # The store

    def take_batch(self, id: str) -> tuple[LedgerBatch, LedgerWindow]:
        """What to store of a budget, which may be nothing, and its window, whose later changes to read. The same batch
        comes again until it is `stored`."""
        window = self._windows[id]
        if window.batch is None:
            self._last_batch += 1
            window.batch = LedgerBatch(self._last_batch, window.start, window.unstored)
            window.unstored = {}
        return window.batch, window

    def lost(self, id: str) -> None:
        """The store has lost its totals, and has not taken the batch: send it again with what was known before."""
        window = self._windows[id]
        changes = window.batch.changes if window.batch is not None else {}
        for name, total in window.totals.items():
            unstored = window.unstored.get(name, NOTHING_SPENT).plus(changes.get(name, NOTHING_SPENT))
            window.floors[name] = total.plus(unstored.negated())
        window.epoch, window.version = "", 0

    def stored(
        self, id: str, batch: LedgerBatch, epoch: str, version: int, totals: Mapping[AccountName, Spending]
    ) -> None:
        """A batch is stored, and these totals have changed in the store since the version that was named."""
        window = self._windows.get(id)
        if window is None or window.batch is not batch:
            return  # its window has ended
        window.batch = None
        window.epoch, window.version, window.floors = epoch, version, {}
        for name, total in totals.items():
            total = total.plus(window.unstored.get(name, NOTHING_SPENT))
            if window.totals.get(name) != total:
                self._set_total(window, name, total)
                window.unsent.add(name)

    @property
    def has_unstored(self) -> bool:
        return any(window.unstored or window.batch for window in self._windows.values())

    def load(self, totals: SpendingByBudget) -> None:
        """Take totals that were written before a restart."""
        self.roll()
        for id, (start, accounts) in totals.items():
            window = self._windows.get(id)
            if window is not None and window.start == start:
                for name, spent in accounts.items():
                    self._set_total(window, name, Spending(*spent))
                window.unsent.update(accounts)
