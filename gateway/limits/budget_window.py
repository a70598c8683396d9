"""Calendar windows in UTC, and what accounts have spent in one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gateway.config.limit_specs import BudgetWindow

# The values of `per` for one account.
AccountName = tuple[str, ...]

# Bound the memory where clients choose names: the accounts of a tenant in a window, and all of a budget.
MAX_TENANT_ACCOUNTS = 10_000
MAX_BUDGET_ACCOUNTS = 50_000
# Stands for the values of accounts beyond. Values of clients are Latin-1, so that none equals it.
OTHERS = "(others\u2026)"

# Spend is counted in billionths, so that sums are exact.
BILLION = 10**9


class Spending(NamedTuple):
    """What was used: requests, tokens, and billionths of the currency; or a change of it."""

    requests: int = 0
    tokens: int = 0
    spend: int = 0

    def plus(self, other: Spending) -> Spending:
        return Spending(self.requests + other.requests, self.tokens + other.tokens, self.spend + other.spend)

    def negated(self) -> Spending:
        return Spending(-self.requests, -self.tokens, -self.spend)


NOTHING_SPENT = Spending()


class AccountBounds:
    """Which accounts of one budget are kept apart in one window. Where there are too many, further ones of a tenant
    share one, so that what clients choose shuts no other tenant out."""

    __slots__ = ("_kept", "_numbers")

    def __init__(self, per: Sequence[str], *, is_verified: bool) -> None:
        """`is_verified`: tenants and keys are no choice of clients."""
        self._kept = [part == "route" or (is_verified and part in ("tenant", "key")) for part in per]
        self._numbers: Counter[AccountName] = Counter()  # of accounts, by the one that others of them share

    def place(self, name: AccountName, known: Collection[AccountName]) -> AccountName:
        """The account of this name: its own, or one that it shares."""
        if name in known:
            return name
        shared = self._shared(name)
        if len(known) < MAX_BUDGET_ACCOUNTS and self._numbers[shared] < MAX_TENANT_ACCOUNTS:
            return name
        return shared if shared in known or len(known) < 2 * MAX_BUDGET_ACCOUNTS else (OTHERS,) * len(name)

    def clear(self) -> None:
        """Another window begins."""
        self._numbers.clear()

    def count(self, name: AccountName) -> None:
        """There is one more account."""
        self._numbers[self._shared(name)] += 1

    def _shared(self, name: AccountName) -> AccountName:
        return tuple(value if is_kept else OTHERS for value, is_kept in zip(name, self._kept, strict=False))


class WindowSpending(NamedTuple):
    """What accounts have spent in the window that starts at `start`, in seconds since 1970."""

    start: int
    accounts: Mapping[AccountName, Spending]


# By the ids of budgets.
SpendingByBudget = Mapping[str, WindowSpending]

_SECONDS = {BudgetWindow.MINUTE: 60, BudgetWindow.HOUR: 3600, BudgetWindow.DAY: 86_400}


def window_of(id: str) -> BudgetWindow:
    """The window of a budget with this id (see `BudgetSpec.id`)."""
    return BudgetWindow(id.partition(":")[0])


def bounds_of(window: BudgetWindow, now: float) -> tuple[int, int]:
    """The start and the end of the window that `now` is in, in seconds since 1970."""
    seconds = _SECONDS.get(window)
    if seconds is not None:
        start = int(now // seconds) * seconds
        return start, start + seconds
    day = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if window is BudgetWindow.WEEK:
        first = day - timedelta(days=day.weekday())
        after = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    return int(first.timestamp()), int(after.timestamp())


def moment_text(seconds: float) -> str:
    """A time as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
