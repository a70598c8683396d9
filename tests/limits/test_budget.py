"""Budgets of calendar windows: workers, the control process' ledger, restarts, other gateways."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.config.limit_specs import BudgetAmounts, BudgetSpec, BudgetWindow, PriceSpec
from gateway.config.specs import IdentitySpec
from gateway.control.messages import SetSpending, Spent
from gateway.limits.budget import Budget, Budgets
from gateway.limits.budget_window import BILLION, OTHERS, Spending, WindowSpending, bounds_of
from gateway.limits.ledger import Ledger
from gateway.limits.ledger_store import LedgerFile, exchange_command, read_exchange
from gateway.limits.limit_key import account_name
from gateway.limits.prices import Prices
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.canonical import TokenUsage
from gateway.supervision.budgets import BudgetLedger
from gateway.supervision.viewer_digests import ViewerDigests
from tests.dataplane.stage import until
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import stored


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


WINDOWS = [
    (BudgetWindow.MINUTE, "2026-11-23T21:59:59.9", "2026-11-23T21:59", "2026-11-23T22:00"),
    (BudgetWindow.HOUR, "2026-11-23T21:59:59", "2026-11-23T21:00", "2026-11-23T22:00"),
    (BudgetWindow.DAY, "2026-12-31T23:59:59", "2026-12-31T00:00", "2027-01-01T00:00"),
    (BudgetWindow.WEEK, "2026-11-29T23:00", "2026-11-23T00:00", "2026-11-30T00:00"),
    (BudgetWindow.MONTH, "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
    (BudgetWindow.MONTH, "2028-02-29T12:00", "2028-02-01T00:00", "2028-03-01T00:00"),
    (BudgetWindow.MONTH, "2026-02-01T00:00", "2026-02-01T00:00", "2026-03-01T00:00"),
]


@pytest.mark.parametrize("window, now, start, end", WINDOWS)
def test_windows_are_those_of_the_calendar_in_utc(window: BudgetWindow, now: str, start: str, end: str) -> None:
    """A window starts and ends with the calendar in UTC, whatever the length of the month."""
    assert bounds_of(window, at(now)) == (at(start), at(end))


def test_a_request_costs_what_its_model_does() -> None:
    """The first price that matches counts, cached tokens at their own price; sums are exact."""
    prices = Prices([PriceSpec(("gpt-*",), 2.5, 10.0, 1.25), PriceSpec(("*",), 0.1, 0.1, request=0.001)])
    assert prices.cost("gpt-4o", TokenUsage(1000, 100, 400)) == (600 * 2500 + 400 * 1250 + 100 * 10_000)
    assert prices.cost("other", TokenUsage(3, 0, 9)) == 300
    assert (prices.cost_of_request("gpt-4o"), prices.cost_of_request("other")) == (0, BILLION // 1000)
    assert Prices(()).cost("other", TokenUsage(3, 1)) == 0


class Clock:
    def __init__(self, text: str) -> None:
        self.now = at(text)

    def __call__(self) -> float:
        return self.now


class Caller:
    """A request of one tenant."""

    route = "chat"

    def __init__(self, tenant: str, session: str | None = None) -> None:
        self.tenant = tenant.encode()
        self.session = session

    def field(self, name: bytes) -> bytes | None:
        return self.tenant

    def expected_tokens(self) -> int:
        return 0


class Worker:
    """Budgets of a worker, which reports when the test says so."""

    def __init__(self, clock: Clock, *specs: BudgetSpec, is_verified: bool = False) -> None:
        self.is_verified = is_verified
        self.due: list[Callable[[], None]] = []
        self.budgets = Budgets(lambda seconds, call: self.due.append(call), clock=clock)
        self.use(*specs)

    def use(self, *specs: BudgetSpec) -> None:
        self.all = tuple(Budget(spec, IdentitySpec(), is_verified=self.is_verified) for spec in specs)
        self.budgets.use({budget.spec.name: budget for budget in self.all}, Prices(()))

    def request(self, tenant: str, tokens: int = 0, spend: int = 0, session: str | None = None) -> None:
        """Raises: GatewayError."""
        accounts = self.budgets.check(self.all, Caller(tenant, session))
        self.budgets.count(self.all, accounts, 1, tokens, spend)

    def report(self) -> None:
        due, self.due[:] = list(self.due), []
        for call in due:
            call()


class Gateway:
    """A control process and its workers: messages arrive when the test says so."""

    def __init__(self, clock: Clock, *specs: BudgetSpec, workers: int = 2, is_verified: bool = False) -> None:
        self.ledger = Ledger(clock)
        self.ledger.use(specs, is_verified=is_verified)
        self.workers = [Worker(clock, *specs, is_verified=is_verified) for _ in range(workers)]
        self.confirmed: dict[int, int] = {}
        for number, worker in enumerate(self.workers):
            worker.budgets.report = self._taker(number)

    def _taker(self, number: int) -> Callable[[int, Any], None]:
        def take(batch: int, spent: Any) -> None:
            self.ledger.add(spent)
            self.confirmed[number] = batch

        return take

    def settle(self) -> None:
        """Have all workers report, and tell them the totals."""
        for worker in self.workers:
            worker.report()
        totals, confirmed, self.confirmed = self.ledger.take_unsent(), self.confirmed, {}
        for number, worker in enumerate(self.workers):
            worker.budgets.set_spending(totals, confirmed.get(number, -1))


DAILY = BudgetSpec("daily", BudgetWindow.DAY, per=("tenant",), requests=3)


def refused(worker: Worker, tenant: str, session: str | None = None) -> GatewayError:
    with pytest.raises(GatewayError) as error:
        worker.request(tenant, session=session)
    return error.value


def test_two_workers_share_one_budget() -> None:
    """What one worker counts is known to the other after its report, and counts once, whatever comes in between."""
    gateway = Gateway(Clock("2026-11-23T12:00"), DAILY)
    one, two = gateway.workers
    one.request("a")
    one.request("a")
    one.report()
    one.request("a")  # after the report, before the totals
    gateway.settle()
    gateway.settle()
    error = refused(two, "a")
    assert "budget 'daily' is exhausted (requests of 3 a day per tenant)" in error.message
    assert refused(one, "a").kind is ErrorKind.BUDGET_EXHAUSTED
    two.request("b")
    [account] = [each for each in gateway.ledger.totals()[DAILY.id].accounts.items() if each[0] == ("a",)]
    assert account == (("a",), Spending(3, 0, 0))


def test_a_refusal_names_the_reset() -> None:
    """A refusal has the end of the window as a time, in the fields of OpenAI's and Anthropic's clients, and stops their
    retries where they would not wait that long."""
    clock = Clock("2026-12-31T23:00")
    worker = Worker(clock, BudgetSpec("m", BudgetWindow.MONTH, requests=1))
    worker.request("")
    error = refused(worker, "")
    assert error.message == "budget 'm' is exhausted (requests of 1 a month): it resets at 2027-01-01T00:00:00Z"
    fields = dict(error.fields)
    assert (fields[b"retry-after"], fields[b"retry-after-ms"]) == (b"3600", b"3600000")
    assert fields[b"x-should-retry"] == b"false"
    assert (fields[b"x-ratelimit-remaining-requests"], fields[b"x-ratelimit-reset-requests"]) == (b"0", b"3600s")
    clock.now = at("2026-12-31T23:59:30")
    assert b"x-should-retry" not in dict(refused(worker, "").fields)
    short = Worker(clock, BudgetSpec("m", BudgetWindow.MINUTE, requests=1))
    short.request("")
    assert refused(short, "").kind is ErrorKind.RATE_LIMITED


def test_a_budget_starts_over_with_the_month() -> None:
    """With the window's end an account starts over, in workers and ledger; what was counted before is no part of it."""
    clock = Clock("2026-11-30T23:59:59")
    spec = BudgetSpec("m", BudgetWindow.MONTH, per=("tenant",), tokens=10)
    gateway = Gateway(clock, spec)
    one, two = gateway.workers
    one.request("a", tokens=12)
    gateway.settle()
    refused(two, "a")
    two.request("b", tokens=3)
    clock.now += 1
    two.request("a", tokens=4)
    gateway.settle()  # the report of the last month comes too late
    assert gateway.ledger.totals()[spec.id] == WindowSpending(int(at("2026-12-01T00:00")), {("a",): Spending(1, 4, 0)})
    one.request("a", tokens=6)
    refused(one, "a")


def test_overrides_and_changed_rules_keep_what_is_spent() -> None:
    """A tenant may have other amounts; new amounts hold at once, and what is spent stays."""
    clock = Clock("2026-11-23T12:00")
    rich = BudgetSpec("b", BudgetWindow.DAY, per=("tenant",), spend=1.0, overrides={"a": BudgetAmounts(spend=2.0)})
    worker = Worker(clock, rich)
    for tenant in ("a", "b"):
        worker.request(tenant, spend=BILLION)
    worker.request("a")
    assert "spend of 1 a day" in refused(worker, "b").message
    worker.use(BudgetSpec("b", BudgetWindow.DAY, per=("tenant",), spend=1.5))
    worker.request("b", spend=BILLION // 2)
    refused(worker, "b")
    worker.use(BudgetSpec("b", BudgetWindow.MONTH, per=("tenant",), spend=1.5))
    worker.request("b")  # another window starts empty


def test_an_account_is_reset() -> None:
    """After a reset the account starts over in all workers, with what is counted meanwhile."""
    gateway = Gateway(Clock("2026-11-23T12:00"), DAILY)
    one, two = gateway.workers
    for _ in range(3):
        one.request("a")
    gateway.settle()
    assert gateway.ledger.reset(DAILY.id, ("nobody",)) is None
    assert gateway.ledger.reset(DAILY.id, ("a",)) == Spending(3, 0, 0)
    gateway.settle()
    for worker in (one, two, one):
        worker.request("a")
        gateway.settle()
    refused(two, "a")


def test_reports_of_many_accounts_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report has a bounded number of accounts, so that no worker stops to write it; the rest follows."""
    monkeypatch.setattr("gateway.limits.budget._MAX_REPORTED", 2)
    gateway = Gateway(Clock("2026-11-23T12:00"), DAILY, workers=1)
    for tenant in "abcde":
        gateway.workers[0].request(tenant)
    for known in (2, 4, 5, 5):
        gateway.settle()
        assert len(gateway.ledger.totals()[DAILY.id].accounts) == known


def test_overrides_have_names_in_any_language() -> None:
    """An override for a tenant whose name is not ASCII counts: its account has the text that rules have."""
    spec = BudgetSpec("b", BudgetWindow.DAY, per=("tenant",), requests=1, overrides={"café": BudgetAmounts(requests=9)})
    for name in ("café".encode(), "café".encode("latin-1")):
        account = account_name(spec, name, is_verified=True)
        assert (account, spec.amounts(account).requests) == (("café",), 9)


def test_accounts_have_no_secrets_in_their_names() -> None:
    """A key that is not verified, a credential in a field and a session stand as digests; a verified key has an id."""
    per = ("tenant", "header:x-tier", "key", "header:x-goog-api-key", "header:x-auth-token", "session")
    spec = BudgetSpec("k", BudgetWindow.DAY, per=per, requests=1)
    tenant, tier, *secrets = account_name(spec, (b"acme", b"gold", *[b"sk-1"] * 4), is_verified=False)
    assert (tenant, tier) == ("acme", "gold")
    assert all(re.fullmatch("sha256:[0-9a-f]{32}", each) for each in secrets) and len(set(secrets)) == 1
    named = account_name(spec, (b"", b"", b"id-1", b"sk-1", b"", b""), is_verified=True)
    assert named == ("", "", "id-1", secrets[0], "", "")


@pytest.mark.parametrize("bound", ["MAX_TENANT_ACCOUNTS", "MAX_BUDGET_ACCOUNTS"])
def test_accounts_are_bounded(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound of accounts further ones share one: inventing names does not evade a budget. No name that
    clients send is that account's."""
    monkeypatch.setattr(f"gateway.limits.budget_window.{bound}", 2)
    gateway = Gateway(Clock("2026-11-23T12:00"), DAILY, workers=1)
    [worker] = gateway.workers
    for tenant in (OTHERS, "(others)", "c", "d", "e"):
        worker.request(tenant)
    refused(worker, "f")
    worker.request(OTHERS)
    gateway.settle()
    counted = gateway.ledger.totals()[DAILY.id].accounts
    assert counted[(OTHERS,)] == Spending(3, 0, 0) and len(counted) == 3
    assert counted[(OTHERS.encode().decode("latin-1"),)] == Spending(2, 0, 0)


BY_SESSION = BudgetSpec("b", BudgetWindow.MONTH, per=("tenant", "session"), requests=3)


@pytest.mark.parametrize("bound", ["MAX_TENANT_ACCOUNTS", "MAX_BUDGET_ACCOUNTS"])
def test_a_tenant_with_too_many_accounts_shuts_out_no_other(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions of a verified tenant beyond the bound share an account of that tenant, in workers and the ledger."""
    monkeypatch.setattr(f"gateway.limits.budget_window.{bound}", 4)
    gateway = Gateway(Clock("2026-11-23T12:00"), BY_SESSION, is_verified=True)
    one, two = gateway.workers
    for worker, name in ((one, "a"), (two, "b")):
        for number in range(4):
            worker.request("mallory", session=f"{name}{number}")
    one.request("mallory", session="more")
    gateway.settle()
    counted = gateway.ledger.totals()[BY_SESSION.id].accounts
    assert counted[("mallory", OTHERS)] == Spending(5, 0, 0) and len(counted) == 5
    refused(two, "mallory", session="still more")
    for _ in range(3):
        two.request("acme", session="s")
    refused(two, "acme", session="s")


def test_refused_requests_open_no_account() -> None:
    """A request that a limit refuses after its budgets were checked has no account; of several that are admitted at
    once all count in one."""
    worker = Worker(Clock("2026-11-23T12:00"), DAILY)
    [budget] = worker.all
    first, second, _ = (worker.budgets.check(worker.all, Caller("a")) for _ in range(3))
    assert not budget.period.accounts and not budget.accounts
    for accounts in (first, second):
        worker.budgets.count(worker.all, accounts, 1, 0, 0)
    for accounts in (first, second):
        worker.budgets.count(worker.all, accounts, 0, 5, 7)
    [account] = budget.period.accounts.values()
    assert (account.requests, account.tokens, account.spend) == (2, 10, 14) == account.take_new()
    worker.request("a")
    refused(worker, "a")


class Pool:
    """Workers that only record what they are sent."""

    def __init__(self) -> None:
        self.sent: list[SetSpending] = []

    def send(self, message: SetSpending) -> None:
        self.sent.append(message)


def spent(clock: Clock, tenant: str, requests: int) -> Spent:
    start = bounds_of(BudgetWindow.DAY, clock.now)[0]
    return Spent("w", 1, {DAILY.id: WindowSpending(start, {(tenant,): Spending(requests, 0, 0)})})


def test_people_read_keyed_digests_of_sessions(tmp_path: Path) -> None:
    """Accounts of sessions are listed, exported and reset by digests with the gateway's secret: the plain ones, which
    the store has, could be tried."""
    clock = Clock("2026-11-23T12:00")
    spec = BudgetSpec("s", BudgetWindow.DAY, per=("session",), requests=10)
    name = account_name(spec, b"joe", is_verified=False)
    digests = ViewerDigests(lambda: b"secret")
    (keyed,) = map(digests.in_text, name)
    assert keyed == digests.of("joe") != name[0]

    async def scene() -> None:
        ledger = BudgetLedger(Pool(), None, tmp_path, Ledger(clock), digests=digests)
        await ledger.open([spec])
        start = bounds_of(BudgetWindow.DAY, clock.now)[0]
        ledger.receive(Spent("w", 1, {spec.id: WindowSpending(start, {name: Spending(3, 0, 0)})}))
        assert [each.name for each in ledger.accounts(spec)] == [(keyed,)]
        assert [each.account for each in ledger.uses()["s"].shown] == [keyed]
        assert ledger.reset(spec, name) is None
        assert ledger.reset(spec, (keyed,)) == Spending(3, 0, 0)
        await ledger.close()

    asyncio.run(scene())


def test_counts_survive_a_restart_without_redis(tmp_path: Path) -> None:
    """Without Redis, counts are in a file of the data folder, which one gateway has; a damaged file is told."""
    clock = Clock("2026-11-23T12:00")

    async def once(requests: int) -> Any:
        ledger = BudgetLedger(Pool(), None, tmp_path, Ledger(clock))
        await ledger.open([DAILY])
        if requests:
            ledger.receive(spent(clock, "a", requests))
        found = ledger.spending
        await ledger.close()
        assert found is not None
        return found.budgets[DAILY.id].accounts

    assert asyncio.run(once(2)) == {("a",): Spending(2, 0, 0)}
    assert asyncio.run(once(1)) == {("a",): Spending(3, 0, 0)}
    file = LedgerFile(tmp_path)
    file.open()
    with pytest.raises(OSError, match="temporarily unavailable"):
        LedgerFile(tmp_path).open()
    file.close()
    clock.now = at("2026-11-24T00:00")
    assert asyncio.run(once(0)) == {}
    (tmp_path / "budgets.json").write_text('{"a": []}')
    assert asyncio.run(once(1)) == {("a",): Spending(1, 0, 0)}


def test_gateways_share_budgets_by_redis(redis_server: RedisServer, tmp_path: Path) -> None:
    """Gateways of one Redis know what each other has counted, also after a restart; a reset holds for all."""
    clock = Clock("2026-11-23T12:00")

    async def scene() -> None:
        async with stored(redis_server) as store:
            one, two = [BudgetLedger(Pool(), store, tmp_path, Ledger(clock)) for _ in range(2)]
            for each in (one, two):
                await each.open([DAILY])

            def known(ledger: BudgetLedger) -> Any:
                return ledger.ledger.totals()[DAILY.id].accounts.get(("a",))

            one.receive(spent(clock, "a", 2))
            two.receive(spent(clock, "a", 1))
            await until(lambda: known(one) == known(two) == Spending(3, 0, 0))
            assert two.reset(DAILY, ("a",)) == Spending(3, 0, 0)
            await until(lambda: known(one) == Spending(0, 0, 0))
            one.receive(spent(clock, "a", 5))
            await one.close()
            third = BudgetLedger(Pool(), store, tmp_path, Ledger(clock))
            await third.open([DAILY])
            assert known(third) == Spending(5, 0, 0)
            clock.now = at("2026-11-24T00:00")
            third.receive(spent(clock, "a", 1))
            await until(lambda: known(two) == Spending(1, 0, 0))
            for each in (two, third):
                await each.close()

    asyncio.run(scene())
    assert not redis_server.client.ttl("pointsman:1:budget:{day:daily:tenant}") > 0


def test_a_redis_that_lost_its_totals_gets_them_back(redis_server: RedisServer) -> None:
    """Gateways restore what Redis has lost, once, and what they have counted since comes on top."""
    clock = Clock("2026-11-23T12:00")

    async def scene() -> None:
        async with stored(redis_server) as store:
            gateways = [BudgetLedger(Pool(), store, None, Ledger(clock)) for _ in range(2)]

            def known() -> list[Any]:
                return [each.ledger.totals()[DAILY.id].accounts.get(("a",)) for each in gateways]

            for each in gateways:
                await each.open([DAILY])
                each.receive(spent(clock, "a", 5))
            await until(lambda: known() == [Spending(10, 0, 0)] * 2)
            redis_server.client.flushall()
            for each in gateways:
                each.receive(spent(clock, "a", 1))
            await until(lambda: known() == [Spending(12, 0, 0)] * 2)
            for each in gateways:
                await each.close()
        totals = redis_server.client.hgetall("pointsman:1:budget:{day:daily:tenant}")
        assert int(totals['requests:["a"]']) == 12

    asyncio.run(scene())


def test_members_that_are_no_accounts_stop_nothing(redis_server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """What others write to a budget in Redis is left out, with a line in the log: gateways open, and share the rest."""
    clock = Clock("2026-11-23T12:00")
    key = "pointsman:1:budget:{day:daily:tenant}"

    def spoil() -> None:
        for member in ("x", '["no", "total"]', "[1]", "[" * 100_000, '"ab"'):
            redis_server.client.zadd(f"{key}:changes", {member: 10**9})
            for unit in ("requests", "tokens", "spend") if member != '["no", "total"]' else ():
                redis_server.client.hset(key, f"{unit}:{member}", "9" * 400 if member == "x" else 1)
        redis_server.client.hset(key, mapping={"version": 10**9, 'requests:["a"]': "no number"})

    async def scene() -> None:
        async with stored(redis_server) as store:
            one, two = [BudgetLedger(Pool(), store, None, Ledger(clock)) for _ in range(2)]

            def known(ledger: BudgetLedger) -> Any:
                return ledger.ledger.totals()[DAILY.id].accounts

            await one.open([DAILY])
            spoil()
            one.receive(spent(clock, "a", 2))
            await two.open([DAILY])
            two.receive(spent(clock, "b", 1))
            whole = {("a",): Spending(2, 0, 0), ("b",): Spending(1, 0, 0)}
            await until(lambda: known(one) == known(two) == whole)
            redis_server.client.hset(key, mapping={"version": "x", "window": "x"})
            two.receive(spent(clock, "b", 1))
            await until(lambda: known(one) == known(two) == {**whole, ("b",): Spending(2, 0, 0)})
            for each in (one, two):
                await each.close()

    asyncio.run(scene())
    assert "Traceback" not in caplog.text
    assert "budget day:daily:tenant: Redis has members that are no accounts: [b'\"ab\"'" in caplog.text


def test_a_batch_that_comes_twice_counts_once(redis_server: RedisServer) -> None:
    """A batch whose reply was lost is sent again under its number; an old window changes nothing."""
    clock = Clock("2026-11-23T12:00")

    async def scene() -> None:
        ledger = Ledger(clock)
        ledger.use([DAILY])
        ledger.add(spent(clock, "a", 2).budgets)
        async with stored(redis_server) as store:
            for _ in range(2):
                batch, window = ledger.take_batch(DAILY.id)
                [reply] = await store.call([exchange_command(DAILY.id, "g", batch, window)])
                assert read_exchange(reply) == ("g:1", 1, {("a",): Spending(2, 0, 0)}, [])
                ledger.add(spent(clock, "a", 1).budgets)
            ledger.stored(DAILY.id, batch, "g:1", 1, {("a",): Spending(2, 0, 0)})
            assert ledger.totals()[DAILY.id].accounts == {("a",): Spending(4, 0, 0)}
            batch.start -= 86_400
            [reply] = await store.call([exchange_command(DAILY.id, "g", batch, window)])
            assert read_exchange(reply) is None

    asyncio.run(scene())
