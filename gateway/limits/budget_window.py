"""Calendar windows in UTC, and what accounts have spent in one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gateway.config.limit_specs import BudgetWindow

# The values of `per` for one account.
AccountName = tuple[str, ...]

# Bounds the memory where clients choose their names: further accounts of a window share one.
MAX_BUDGET_ACCOUNTS = 10_000
OTHERS: AccountName = ("(others)",)

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
