"""Budgets in one worker: what accounts have spent by all that is known here.

A worker admits by the last totals of the control process and by what it has counted itself since. It reports what it
counts a moment later; the control process adds up the workers and, by Redis, the gateways (see `ledger`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from time import time

from gateway.config.limit_specs import BudgetSpec, BudgetWindow
from gateway.config.specs import IdentitySpec
from gateway.limits.budget_window import (
    BILLION,
    MAX_BUDGET_ACCOUNTS,
    NOTHING_SPENT,
    AccountBounds,
    AccountName,
    Spending,
    SpendingByBudget,
    WindowSpending,
    bounds_of,
    moment_text,
    window_of,
)
from gateway.limits.limit_key import LimitedRequest, LimitKey, account_name, header_names, reader_of
from gateway.limits.prices import Prices
from gateway.protocol.errors import ErrorKind, GatewayError

_UNBOUNDED = sys.maxsize
# How long after its first count a worker reports: in this time, other workers may admit too much. Where many accounts
# are in use, reports come less often, and have so many accounts at the most.
_REPORT_SECONDS = 0.05
_REPORT_SECONDS_EACH = 0.0005
_MAX_REPORTED = 1000
# Clients of OpenAI and Anthropic wait no longer than this before they try again.
_MAX_RETRY_SECONDS = 60


class BudgetAccount:
    """What one account has spent in the current window, and what it may."""

    __slots__ = (
        "is_changed",
        "is_open",
        "max_requests",
        "max_spend",
        "max_tokens",
        "name",
        "new_requests",
        "new_spend",
        "new_tokens",
        "requests",
        "spend",
        "tokens",
        "unconfirmed",
    )

    def __init__(self, name: AccountName) -> None:
        self.name = name
        self.requests = self.tokens = self.spend = 0
        self.max_requests = self.max_tokens = self.max_spend = _UNBOUNDED
        self.new_requests = self.new_tokens = self.new_spend = 0  # not reported yet
        self.unconfirmed = NOTHING_SPENT  # reported, and not in the totals of the control process
        self.is_changed = False
        self.is_open = False  # in the table of its window: a request of it counts

    def allow(self, spec: BudgetSpec) -> None:
        """Take the amounts of the rules."""
        amounts = spec.amounts(self.name)
        self.max_requests = amounts.requests or _UNBOUNDED
        self.max_tokens = amounts.tokens or _UNBOUNDED
        self.max_spend = _UNBOUNDED if amounts.spend is None else round(amounts.spend * BILLION)

    def take_new(self) -> Spending:
        """What is to be reported."""
        new = Spending(self.new_requests, self.new_tokens, self.new_spend)
        self.new_requests = self.new_tokens = self.new_spend = 0
        self.is_changed = False
        self.unconfirmed = self.unconfirmed.plus(new)
        return new

    def hand_over(self, other: BudgetAccount) -> None:
        """Have another account count what is new in this one."""
        other.requests += self.new_requests
        other.tokens += self.new_tokens
        other.spend += self.new_spend
        other.new_requests += self.new_requests
        other.new_tokens += self.new_tokens
        other.new_spend += self.new_spend
        self.new_requests = self.new_tokens = self.new_spend = 0

    def set_total(self, total: Spending) -> None:
        """Take the control process' total, and add what it lacks."""
        known = total.plus(self.unconfirmed)
        self.requests = known.requests + self.new_requests
        self.tokens = known.tokens + self.new_tokens
        self.spend = known.spend + self.new_spend


class BudgetPeriod:
    """The current window of one budget with its accounts, whatever rules are in force."""

    __slots__ = ("accounts", "bounds", "changed", "end", "start", "window")

    def __init__(self, window: BudgetWindow, now: float) -> None:
        self.window = window
        self.accounts: dict[AccountName, BudgetAccount] = {}
        self.bounds = AccountBounds((), is_verified=False)
        self.changed: list[BudgetAccount] = []
        self.start, self.end = bounds_of(window, now)

    def use(self, per: Sequence[str], *, is_verified: bool) -> None:
        """Take the rules' names of accounts."""
        self.bounds = AccountBounds(per, is_verified=is_verified)
        for name in self.accounts:
            self.bounds.count(name)

    def add(self, account: BudgetAccount) -> None:
        account.is_open = True
        self.accounts[account.name] = account
        self.bounds.count(account.name)

    def roll(self, now: float) -> None:
        """Start over where the window has ended."""
        if now >= self.end:
            self.start, self.end = bounds_of(self.window, now)
            self.accounts, self.changed = {}, []
            self.bounds.clear()


class Budget:
    """One budget of the rules, compiled."""

    __slots__ = ("_is_verified", "accounts", "era", "header_names", "period", "read_key", "refused", "spec")

    period: BudgetPeriod  # set once the rules are in force

    def __init__(self, spec: BudgetSpec, identity: IdentitySpec, *, is_verified: bool = False) -> None:
        """`is_verified`: the rules have `auth:`."""
        self.spec = spec
        self.header_names = header_names(spec, identity, is_verified=is_verified)  # that keys are read from
        self.read_key = reader_of(spec, identity, is_verified=is_verified)
        self.accounts: dict[LimitKey, BudgetAccount] = {}  # of the current window, as requests name them
        self.refused = 0  # requests since the start
        self.era = 0  # of `accounts`
        self._is_verified = is_verified

    def find(self, limit_key: LimitKey) -> BudgetAccount:
        """The account of a key that is not in `accounts`; one without a request that counts is in no table."""
        account = self._placed(account_name(self.spec, limit_key, is_verified=self._is_verified))
        if account.is_open and len(self.accounts) < MAX_BUDGET_ACCOUNTS:
            self.accounts[limit_key] = account
        return account

    def open(self, account: BudgetAccount) -> BudgetAccount:
        """The account that counts what this one has counted: itself, unless another request has opened one of its name,
        or there are too many meanwhile."""
        found = self._placed(account.name)
        if not found.is_open:
            self.period.add(account if found.name == account.name else found)
        found = self.period.accounts[found.name]
        if found is not account:
            account.hand_over(found)
        return found

    def _placed(self, name: AccountName) -> BudgetAccount:
        known = self.period.accounts
        name = self.period.bounds.place(name, known.keys())
        account = known.get(name)
        if account is None:
            account = BudgetAccount(name)
            account.allow(self.spec)
        return account

    def use(self, period: BudgetPeriod) -> None:
        """Count in this period."""
        self.period = period
        period.use(self.spec.per, is_verified=self._is_verified)
        for account in period.accounts.values():
            account.allow(self.spec)


class Budgets:
    """All budgets of one worker. `report` sends what was counted to the control process, `later` calls a function after
    some seconds."""

    def __init__(
        self,
        later: Callable[[float, Callable[[], None]], object],
        report: Callable[[int, SpendingByBudget], None] | None = None,
        clock: Callable[[], float] = time,
    ) -> None:
        self.report = report
        self.era = 0  # changes when accounts do
        self.prices = Prices(())
        self._later = later
        self._clock = clock
        self._budgets: dict[str, Budget] = {}
        self._periods: dict[str, BudgetPeriod] = {}
        self._ends = 0.0  # when the first window does
        self._batch = 0  # the number of the last report
        self._unconfirmed: list[BudgetAccount] = []  # of the last reports
        self._is_scheduled = False
        self._pause = _REPORT_SECONDS  # before the next report

    def __repr__(self) -> str:
        return (
            f"<Budgets {len(self._budgets)}, {sum(len(period.accounts) for period in self._periods.values())} accounts>"
        )

    @property
    def budgets(self) -> Iterable[Budget]:
        return self._budgets.values()

    def use(self, budgets: dict[str, Budget], prices: Prices) -> None:
        """Enforce these budgets, by name; one with the same window and keys keeps its accounts."""
        now = self._clock()
        for name, budget in budgets.items():
            before = self._budgets.get(name)
            if before is not None:
                budget.refused = before.refused
            budget.use(self._period(budget.spec.id, now))
        self._budgets, self.prices = budgets, prices
        self._roll(now)

    def _period(self, id: str, now: float) -> BudgetPeriod:
        found = self._periods.get(id)
        if found is None:
            found = self._periods[id] = BudgetPeriod(window_of(id), now)
        return found

    # Requests

    def check(self, budgets: tuple[Budget, ...], request: LimitedRequest) -> list[BudgetAccount]:
        """The accounts of a request.

        Raises: GatewayError where one is exhausted.
        """
        now = self._clock()
        if now >= self._ends:
            self._roll(now)
        accounts = self.accounts_of(budgets, request)
        for budget, account in zip(budgets, accounts):  # noqa: B905  # one for each; this runs for every request
            if (
                account.requests >= account.max_requests
                or account.tokens >= account.max_tokens
                or account.spend >= account.max_spend
            ):
                budget.refused += 1
                raise exhausted(budget, account, now)
        return accounts

    def accounts_of(self, budgets: tuple[Budget, ...], request: LimitedRequest) -> list[BudgetAccount]:
        """The same, exhausted or not."""
        found = []
        for budget in budgets:
            if budget.era != self.era:
                budget.accounts, budget.era = {}, self.era
            key = budget.read_key(request)
            found.append(budget.accounts.get(key) or budget.find(key))
        return found

    def count(
        self, budgets: tuple[Budget, ...], accounts: list[BudgetAccount], requests: int, tokens: int, spend: int
    ) -> None:
        """Add what a request has used; `accounts` are those of `budgets`."""
        for budget, account in zip(budgets, accounts):  # noqa: B905  # as above
            if requests:
                account.requests += requests
                account.new_requests += requests
            if tokens:
                account.tokens += tokens
                account.new_tokens += tokens
            if spend:
                account.spend += spend
                account.new_spend += spend
            if not account.is_changed:
                if not account.is_open:
                    account = budget.open(account)
                    if account.is_changed:
                        continue
                account.is_changed = True
                budget.period.changed.append(account)
        if not self._is_scheduled:
            self._report_soon()

    def _roll(self, now: float) -> None:
        """Begin the windows that `now` is in."""
        for period in self._periods.values():
            period.roll(now)
        self._ends = min((period.end for period in self._periods.values()), default=float("inf"))
        self.era += 1

    # The control process

    def _report_soon(self) -> None:
        self._is_scheduled = True
        self._later(self._pause, self._report_later)

    def _report_later(self) -> None:
        self._is_scheduled = False
        if not self._unconfirmed:
            self.flush(_MAX_REPORTED)

    def flush(self, most: int = _UNBOUNDED) -> None:
        """Report what has been counted, of `most` accounts."""
        if self.report is None:
            return
        spent: dict[str, WindowSpending] = {}
        num_reported = 0
        for id, period in self._periods.items():
            changed, period.changed = period.changed[: most - num_reported], period.changed[most - num_reported :]
            if changed:
                spent[id] = WindowSpending(period.start, {account.name: account.take_new() for account in changed})
                self._unconfirmed += changed
                num_reported += len(changed)
        if spent:
            self._pause = max(_REPORT_SECONDS, num_reported * _REPORT_SECONDS_EACH)
            self._batch += 1
            self.report(self._batch, spent)

    def set_spending(self, totals: SpendingByBudget, batch: int) -> None:
        """Take totals of the control process, which have this worker's reports up to `batch` in them."""
        now = self._clock()
        if now >= self._ends:
            self._roll(now)
        if batch == self._batch:
            for account in self._unconfirmed:
                account.unconfirmed = NOTHING_SPENT
            self._unconfirmed = []
        by_id = {budget.spec.id: budget for budget in self._budgets.values()}
        for id, (start, accounts) in totals.items():
            period = self._period(id, now)
            if period.start != start:
                continue
            budget = by_id.get(id)
            for name, total in accounts.items():
                known = period.accounts.get(name)
                if known is None:
                    known = BudgetAccount(name)
                    period.add(known)
                    if budget is not None:
                        known.allow(budget.spec)
                known.set_total(total)
        is_changed = any(period.changed for period in self._periods.values())
        if is_changed and not self._unconfirmed and not self._is_scheduled:
            self._report_soon()


def exhausted(budget: Budget, account: BudgetAccount, now: float) -> GatewayError:
    """The error of a refused request: when the budget starts over, for people and for clients that try again."""
    spec, end = budget.spec, budget.period.end
    amounts = spec.amounts(account.name)
    fields: list[tuple[bytes, bytes]] = []
    reached = ""
    wait = max(1, ceil(end - now))
    for name, used, most, amount in (
        ("requests", account.requests, account.max_requests, amounts.requests),
        ("tokens", account.tokens, account.max_tokens, amounts.tokens),
        ("spend", account.spend, account.max_spend, amounts.spend),
    ):
        if amount is None:
            continue
        if used >= most and not reached:
            reached = f"{name} of {amount:.12g}"
        if name != "spend":
            what = name.encode()
            fields += [
                (b"x-ratelimit-limit-" + what, b"%d" % amount),
                (b"x-ratelimit-remaining-" + what, b"%d" % max(0, most - used)),
                (b"x-ratelimit-reset-" + what, b"%ds" % wait),
            ]
    more = [(b"retry-after", b"%d" % wait), (b"retry-after-ms", b"%d" % max(1, ceil((end - now) * 1000)))]
    if wait > _MAX_RETRY_SECONDS:
        more.append((b"x-should-retry", b"false"))
    per = f" per {', '.join(spec.per)}" if spec.per else ""
    message = (
        f"budget '{spec.name}' is exhausted ({reached} a {spec.window.value}{per}): it resets at {moment_text(end)}"
    )
    kind = ErrorKind.RATE_LIMITED if spec.window is BudgetWindow.MINUTE else ErrorKind.BUDGET_EXHAUSTED
    return GatewayError(kind, message, (*more, *fields))
