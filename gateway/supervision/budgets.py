"""The budgets of a gateway in its control process: adds up the workers' reports, stores them in Redis or in the data
folder, and keeps the workers up to date."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from gateway.config.limit_specs import BudgetAmounts, BudgetSpec
from gateway.control.messages import SetSpending, Spent
from gateway.limits.budget_window import BILLION, AccountName, Spending, SpendingByBudget
from gateway.limits.ledger import Ledger
from gateway.limits.ledger_store import LedgerFile, TotalsLostError, exchange_command, read_exchange
from gateway.observability.stats import MAX_SHOWN, BudgetAccountUse, BudgetUse
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import StoreError
from gateway.supervision.viewer_digests import ViewerDigests

_log = logging.getLogger("pointsman")

# How long totals wait for further reports before workers get them: at least, and for each account of the last ones.
_BROADCAST_SECONDS = 0.02
_BROADCAST_SECONDS_EACH = 0.0002
# How often gateways exchange what they have counted, and how long a call may take.
_EXCHANGE_SECONDS = 0.25
_CALL_SECONDS = 1.0
# How often the file is written where something has changed: a crash loses as much.
_WRITE_SECONDS = 1.0


class BudgetStatement(NamedTuple):
    """What one account has spent, and what it may."""

    name: AccountName
    spent: Spending
    amounts: BudgetAmounts

    @property
    def used(self) -> float:
        """The largest share of an amount that is used."""
        amounts = self.amounts
        shares = [
            used / amount
            for used, amount in (
                (self.spent.requests, amounts.requests),
                (self.spent.tokens, amounts.tokens),
                (self.spent.spend / BILLION, amounts.spend),
            )
            if amount is not None
        ]
        return max(shares, default=0.0)


def shown(name: AccountName) -> str:
    """An account's name in one text."""
    return ", ".join(part or "(none)" for part in name) or "(all)"


class SpendingPool(Protocol):
    """The workers, as far as budgets concern them."""

    def send(self, message: SetSpending) -> None: ...


class BudgetLedger:
    """Keeps the ledger. `store` is None without Redis, `folder` without a data folder: then counts end with the
    gateway."""

    def __init__(
        self,
        pool: SpendingPool,
        store: BoundedRedis | None,
        folder: Path | None,
        ledger: Ledger | None = None,
        *,
        digests: ViewerDigests | None = None,
    ) -> None:
        self.ledger = ledger if ledger is not None else Ledger()
        self._digests = digests or ViewerDigests(lambda: secrets.token_bytes(32))
        self._pool = pool
        self._store = store
        self._file = LedgerFile(folder) if store is None and folder is not None else None
        self._is_open = False  # whether the file is ours
        self._name = secrets.token_hex(8)  # of this process, in Redis
        self._problems: dict[str, str] = {}  # by budget: what the log has last said of the store
        self._confirmed: dict[str, int] = {}  # the last report of each worker
        self._broadcast: asyncio.TimerHandle | None = None
        self._pause = _BROADCAST_SECONDS  # before the next one
        self._task: asyncio.Task[None] | None = None
        self._specs: tuple[BudgetSpec, ...] = ()  # of the rules in force

    async def open(self, specs: Sequence[BudgetSpec], *, is_verified: bool = False) -> None:
        """Read what was spent before a restart, as far as it can be read now."""
        self.use(specs, is_verified=is_verified)
        if specs:
            await self._sync_safely()

    def use(self, specs: Sequence[BudgetSpec], *, is_verified: bool = False) -> None:
        """Keep the budgets of these rules. `is_verified`: they have `auth:`."""
        self._specs = tuple(specs)
        self.ledger.use(specs, is_verified=is_verified)
        if specs and not self._is_open and self._file is not None:
            self._open_file(self._file)
        if specs and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep_in_sync())
        self._broadcast_soon()

    def _open_file(self, file: LedgerFile) -> None:
        try:
            self.ledger.load(file.open())
        except ValueError as error:
            _log.warning("budgets start over, since %r is damaged: %s", file, error)
        except OSError as error:
            _log.warning("budgets start over with the next restart, since %r cannot be used: %s", file, error)
            self._file = None
            return
        self._is_open = True

    @property
    def specs(self) -> tuple[BudgetSpec, ...]:
        return self._specs

    @property
    def spending(self) -> SetSpending | None:
        """What a worker that starts is to know."""
        return SetSpending(self.ledger.totals(), {}) if self._specs else None

    def receive(self, spent: Spent) -> None:
        """Add a worker's report."""
        self.ledger.add(spent.budgets)
        self._confirmed[spent.worker] = spent.batch
        self._broadcast_soon()

    def reset(self, spec: BudgetSpec, name: AccountName) -> Spending | None:
        """Have an account start over, by the name that `accounts` gives it. Returns: what it had spent; None where it
        is unknown."""
        window = self.ledger.totals()[spec.id]
        known = next((each for each in window.accounts if self._named(each) == name), None)
        spent = self.ledger.reset(spec.id, known) if known is not None else None
        self._send()
        return spent

    def accounts(self, spec: BudgetSpec) -> list[BudgetStatement]:
        """The accounts of a budget in the current window, those that have used most of it first."""
        window = self.ledger.totals()[spec.id]
        statements = [
            BudgetStatement(self._named(name), spent, spec.amounts(name)) for name, spent in window.accounts.items()
        ]
        return sorted(statements, key=lambda statement: (-statement.used, statement.name))

    def _named(self, name: AccountName) -> AccountName:
        """An account's name as people read it."""
        return tuple([self._digests.in_text(part) if part.startswith("sha256:") else part for part in name])

    def uses(self) -> dict[str, BudgetUse]:
        """Every budget, as metrics have it."""
        return {spec.name: self._use_of(spec) for spec in self._specs}

    def _use_of(self, spec: BudgetSpec) -> BudgetUse:
        statements = self.accounts(spec)
        spent = [statement.spent for statement in statements]
        return BudgetUse(
            accounts=len(statements),
            exhausted=sum(statement.used >= 1 for statement in statements),
            reset_at=self.ledger.bounds(spec.id)[1],
            spent={
                "requests": sum(each.requests for each in spent),
                "tokens": sum(each.tokens for each in spent),
                "spend": sum(each.spend for each in spent) / BILLION,
            },
            shown=[BudgetAccountUse(shown(each.name), each.used) for each in statements[:MAX_SHOWN]],
        )

    def _broadcast_soon(self) -> None:
        if self._broadcast is None:
            self._broadcast = asyncio.get_running_loop().call_later(self._pause, self._send)

    def _send(self) -> None:
        if self._broadcast is not None:
            self._broadcast.cancel()
            self._broadcast = None
        totals, confirmed = self.ledger.take_unsent(), self._confirmed
        if totals or confirmed:
            self._confirmed = {}
            num_accounts = sum(len(window.accounts) for window in totals.values())
            self._pause = max(_BROADCAST_SECONDS, num_accounts * _BROADCAST_SECONDS_EACH)
            self._pool.send(SetSpending(totals, confirmed))

    # The store

    async def _keep_in_sync(self) -> None:
        pause = _EXCHANGE_SECONDS if self._store is not None else _WRITE_SECONDS
        while True:
            await asyncio.sleep(pause)
            await self._sync_safely()

    async def _sync_safely(self) -> None:
        try:
            await self._sync()
        except Exception:  # a bug, or what others write to Redis, must not end the gateway
            _log.exception("budgets cannot be stored")

    async def _sync(self) -> None:
        self.ledger.roll()
        if self._store is not None:
            await self._exchange(self._store)
        elif self._is_open and self.ledger.has_unstored:
            await self._write()

    async def _exchange(self, store: BoundedRedis) -> None:
        """Store what this gateway has counted, and read what others have; while Redis is away, it counts on alone."""
        batches = [(id, *self.ledger.take_batch(id)) for id in self.ledger.ids]
        if not batches:
            return
        commands = [exchange_command(id, self._name, batch, window) for id, batch, window in batches]
        try:
            replies = await store.call(commands, _CALL_SECONDS)
        except StoreError:
            return
        for (id, batch, _), reply in zip(batches, replies, strict=True):
            try:
                exchanged = None if isinstance(reply, Exception) else read_exchange(reply)
            except TotalsLostError:
                self.ledger.lost(id)
            else:
                if isinstance(reply, Exception):
                    self._report(id, f"Redis does not store it: {reply}")
                elif exchanged is not None:
                    epoch, version, totals, malformed = exchanged
                    self.ledger.stored(id, batch, epoch, version, totals)
                    if malformed:
                        self._report(
                            id, f"Redis has members that are no accounts: {[each[:80] for each in malformed[:3]]}"
                        )
        self._broadcast_soon()

    def _report(self, id: str, problem: str) -> None:
        """Log a problem once."""
        if self._problems.get(id) != problem:
            self._problems[id] = problem
            _log.warning("budget %s: %s", id, problem)

    async def _write(self) -> None:
        assert self._file is not None
        batches = [(id, self.ledger.take_batch(id)[0]) for id in self.ledger.ids]
        totals: SpendingByBudget = {
            id: window._replace(accounts=dict(window.accounts)) for id, window in self.ledger.totals().items()
        }
        try:
            await asyncio.to_thread(self._file.write, totals)
        except OSError as error:
            _log.warning("what budgets have counted is not stored: %s", error)
            return
        for id, batch in batches:
            self.ledger.stored(id, batch, "", 0, {})

    async def close(self) -> None:
        """Store the rest."""
        if self._broadcast is not None:
            self._broadcast.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.ledger.has_unstored:
            await self._sync_safely()  # a call that was cancelled
            await self._sync_safely()  # and what has come since
        if self._file is not None:
            self._file.close()
