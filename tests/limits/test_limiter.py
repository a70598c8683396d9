"""Many requests to Redis at once: waiting clients come first, and many leases do not make Redis look slow."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.config.limit_specs import LimitSpec
from gateway.config.specs import IdentitySpec
from gateway.limits.account import Account, Counts
from gateway.limits.lease_client import LeaseRequest
from gateway.limits.limit import Limit
from gateway.limits.limiter import Grant, Limiter, Pending
from gateway.protocol.errors import GatewayError
from tests.dataplane.stage import run, until
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import stored


class Request:
    """A request of one tenant, which records its result."""

    route = "chat"
    session = None

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant.encode()
        self.grant: Grant | None = None
        self.error: GatewayError | None = None

    def field(self, name: bytes) -> bytes | None:
        return self.tenant

    def expected_tokens(self) -> int:
        return 0

    def admitted(self, grant: Grant) -> None:
        self.grant = grant

    def refused(self, error: GatewayError) -> None:
        self.error = error

    async def ask(self, limiter: Limiter, limits: tuple[Limit, ...]) -> None:
        try:
            found = limiter.admit(limits, self, asyncio.get_running_loop().time())
        except GatewayError as error:
            self.error = error
            return
        if isinstance(found, Pending):
            await until(lambda: self.grant or self.error)
        else:
            self.grant = found


def limiter_of(store: Any, *specs: LimitSpec) -> tuple[Limiter, tuple[Limit, ...]]:
    limiter = Limiter(1, store)
    limits = {spec.name: Limit(spec, IdentitySpec()) for spec in specs}
    limiter.use(limits)
    return limiter, tuple(limits.values())


def test_a_thousand_leases_are_renewed_and_nobody_waits_behind_them(redis_server: RedisServer) -> None:
    """A thousand leases are renewed a few at a time within the store's timeout, and Redis admits a request
    meanwhile."""

    async def scene() -> None:
        async with stored(redis_server, 30.0) as store:
            limiter, limits = limiter_of(store, LimitSpec("l", per=("tenant",), concurrency=2))
            requests = [Request(str(number)) for number in range(1000)]
            await asyncio.gather(*[request.ask(limiter, limits) for request in requests])
            assert all(request.grant for request in requests)
            now = asyncio.get_running_loop().time()
            limiter.sweep(now + 2)
            late = Request("late")
            await late.ask(limiter, limits)
            assert late.grant is not None
            await until(lambda: "1001 active, 0 queued, 0 in flight" in repr(limiter))
            accounts = limits[0].accounts.values()
            assert {account.slots.held for account in accounts if account.slots} == {1}
            assert len(redis_server.client.keys("*:slots")) == 1001
            assert store.is_available and store.counts.late == 0
            for request in [*requests, late]:
                assert request.grant is not None
                request.grant.end()
            await until(lambda: not any(account.holds for account in accounts))
            limiter.close()

    run(scene())


def test_limits_of_several_kinds_are_taken_together(redis_server: RedisServer) -> None:
    """A request that one limit rejects takes nothing from the others, in Redis neither."""

    async def scene() -> None:
        async with stored(redis_server) as store:
            specs = (
                LimitSpec("rate", requests_per_second=0.001, burst=5),
                LimitSpec("slots", per=("tenant",), concurrency=1),
            )
            limiter, limits = limiter_of(store, *specs)
            first, second, other = Request("a"), Request("a"), Request("b")
            for request in (first, second, other):
                await request.ask(limiter, limits)
            assert first.grant is not None and other.grant is not None
            assert second.error is not None and "'slots'" in second.error.message
            [account] = limits[0].accounts.values()
            account.used_at -= 5
            limiter.sweep(asyncio.get_running_loop().time())
            await until(lambda: not account.holds)
            [bucket] = redis_server.client.keys("*{rate:*:requests")
            assert 3 <= float(redis_server.client.hget(bucket, "level")) < 3.1
            limiter.close()

    run(scene())


def test_slots_are_counted_though_rules_change() -> None:
    """A request admitted before the limit had slots takes one from then on, and does not release another's slot."""

    async def scene() -> None:
        limiter, limits = limiter_of(None, LimitSpec("l", requests_per_second=1000))
        old = [Request("a") for _ in range(3)]
        for request in old:
            await request.ask(limiter, limits)
        limits = (Limit(LimitSpec("l", concurrency=2), IdentitySpec()),)
        limiter.use({"l": limits[0]})
        early = Request("a")
        await early.ask(limiter, limits)
        assert early.error is not None  # three are in flight
        for request in old[:2]:
            assert request.grant is not None
            request.grant.end()
        new = [Request("a") for _ in range(2)]
        for request in new:
            await request.ask(limiter, limits)
        assert [request.grant is not None for request in new] == [True, False]

    run(scene())


def test_who_comes_late_by_old_rules_meets_the_new_limit() -> None:
    """A request that began before a rule change opens no account of the old size."""

    async def scene() -> None:
        limiter, old = limiter_of(None, LimitSpec("l", per=("tenant",), concurrency=5))
        new = Limit(LimitSpec("l", per=("tenant",), concurrency=1), IdentitySpec())
        limiter.use({"l": new})
        await Request("a").ask(limiter, old)
        [account] = new.accounts.values()
        assert account.spec is new.spec
        second = Request("a")
        await second.ask(limiter, (new,))
        assert second.error is not None

    run(scene())


def test_an_answer_that_was_asked_for_by_old_rules_is_of_these() -> None:
    """A lease requested under old rules does not count towards the limit of the new ones."""

    class Waits:
        tokens = None

        def answered(self, *, is_late: bool) -> None:
            raise AssertionError

    account = Account(LimitSpec("l", requests_per_second=10, concurrency=10), b"", 1, 0.0, Counts())
    account.waiting.append(Waits())
    inquiry = LeaseRequest(account, "me", 0.0, is_idle=False)
    assert len(inquiry.commands) == 2
    account.use(LimitSpec("l", concurrency=2), 1, 0.0)
    answers = iter([[b"1", 0], 10])
    assert inquiry.answered(answers, 0.0)
    assert next(answers, None) is None  # each lease request consumed its own replies
    assert account.slots is not None and account.slots.held == 0


def test_who_has_given_all_back_leases_nothing_more(redis_server: RedisServer) -> None:
    """A lease that is due when the limiter closes is not requested."""

    async def scene() -> None:
        async with stored(redis_server) as store:
            limiter, limits = limiter_of(store, LimitSpec("l", concurrency=80))
            requests = [Request("a") for _ in range(40)]
            await asyncio.gather(*[request.ask(limiter, limits) for request in requests])
            for request in requests:
                assert request.grant is not None
                request.grant.end()
            [account] = limits[0].accounts.values()
            limiter._borrow_soon(account)
            limiter.close()
            await asyncio.sleep(0.05)
            await store.flush(timeout=120)
            [leases] = [redis_server.client.hvals(key) for key in redis_server.client.keys("*:slots")]
            assert [lease.split(":")[0] for lease in leases] == ["0"]

    run(scene())
