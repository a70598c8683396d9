"""Runs that several gateways share, on a real redis-server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from gateway.config.experiment_specs import ExperimentSpec
from gateway.experiments import runs
from gateway.experiments.controller import ExperimentController
from gateway.experiments.coordination import MAX_DECISIONS, RedisCoordination
from gateway.experiments.runs import RunState, RunStatus, weights_of
from gateway.redis.command import StoreError
from tests.experiments.making import RAMP, Engine, Workforce, experiment, rules
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

LEADER = "pointsman:1:experiments:{all}:leader"
STATE = RunState("f", {"old": 0.9, "new": 0.1}, revision=1)


async def eventually(what: Callable[[], bool], seconds: float = 240.0) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


def test_one_leads(redis_server: RedisServer) -> None:
    """The first gateway leads while it renews its lease, and receives the reports of all. Its successor has a higher
    token, and what the former leader still writes changes nothing."""

    async def go() -> None:
        async with stored(redis_server) as store:
            a, b = RedisCoordination(store, "a", lease=60), RedisCoordination(store, "b", lease=60)
            one, other = await a.beat({"x": {"turn": 1, "arms": {}}}), await b.beat({"x": {"turn": 2, "arms": {}}})
            assert one.token == 1 and (other.token, other.leader, other.reports) == (None, "a", {})
            one = await a.beat({})
            assert one.reports["b"].experiments == {"x": {"turn": 2, "arms": {}}} and one.reports["b"].age < 15
            assert 0 < redis_server.client.pttl(LEADER) <= 60_000
            redis_server.client.delete(LEADER)  # as it expires
            assert (await b.beat({})).token == 2
            assert not await a.change("x", STATE, 0, None, 1)
            await a.save("x", {"run": {"run": 1}}, 1, is_new=True)
            assert await b.load("x") == {}
            assert await b.change("x", STATE, 0, None, 2)
            await b.close()
            assert (await a.beat({})).token == 3

    asyncio.run(go())


def test_a_state_changes_once(redis_server: RedisServer) -> None:
    """A change that is based on an older revision is refused, from the leader too."""

    async def go() -> None:
        async with stored(redis_server) as store:
            home = RedisCoordination(store, "a")
            later = replace(STATE, revision=2, status=RunStatus.HELD, shares={"old": 0.95, "new": 0.05})
            assert await home.change("x", STATE, 0, {"action": "started"}, None)
            assert not await home.change("x", STATE, 0, {"action": "started"}, None)
            assert await home.change("x", later, 1, {"action": "held"}, None)
            assert (await home.beat({})).states == {"x": later}
            assert [each["action"] for each in await home.decisions(9)] == ["held", "started"]
            assert await home.change("x", None, 2, None, None)
            assert (await home.beat({})).states == {}
            for _ in range(5):
                await home.record({"action": "forced"})
            assert len(await home.decisions(6)) == 6
            assert redis_server.client.llen("pointsman:1:experiments:{all}:decisions") + 993 == MAX_DECISIONS

    asyncio.run(go())


def test_evidence_is_kept_by_parts(redis_server: RedisServer) -> None:
    """Evidence is stored in named parts; a new run drops the parts of the run before."""

    async def go() -> None:
        async with stored(redis_server) as store:
            home = RedisCoordination(store, "a")
            token = (await home.beat({})).token
            assert token is not None
            await home.save("x", {"run": {"run": 1}, "period:1": {"turn": 1}}, token, is_new=True)
            await home.save("x", {"period:2": {"turn": 2}}, token, is_new=False)
            assert await home.load("x") == {"run": {"run": 1}, "period:1": {"turn": 1}, "period:2": {"turn": 2}}
            assert await home.load("x", ("run", "none")) == {"run": {"run": 1}}
            await home.save("x", {"run": {"run": 2}}, token, is_new=True)
            assert await home.load("x") == {"run": {"run": 2}}

    asyncio.run(go())


def test_what_is_no_states_hash_is_an_outage(redis_server: RedisServer) -> None:
    """A key of another type is handled as an outage of Redis, so that experiments hold their shares."""

    async def go() -> None:
        redis_server.client.set("pointsman:1:experiments:{all}", "somebody else's")
        async with stored(redis_server) as store:
            with pytest.raises(StoreError, match="Redis refuses what experiments keep"):
                await RedisCoordination(store, "a").beat({})

    asyncio.run(go())


TICK = 0.1
SPEC = experiment(
    ramp=replace(RAMP, auto_start=True, steps=(0.25, 1.0), min_requests=200, min_time=0.3),
)


class Gateway:
    """One of several gateways, with workers of its own, which serve between its beats.

    Its lease is longer than any test takes, even on a machine that stalls, except where a test lets it lapse.
    """

    def __init__(
        self, name: str, store: Any, seed: int, new: Engine, spec: ExperimentSpec = SPEC, lease: float = 300.0
    ) -> None:
        self.workforce = Workforce(seed, {"old": Engine(), "new": new})
        self.home = RedisCoordination(store, name, lease=lease)
        self.spec = spec
        self.experiments = ExperimentController(self.home, replace(self.workforce.hands, count=self._count), tick=TICK)
        self.rate = 20

    async def _count(self) -> Any:
        self.workforce.serve(self.spec, self.rate)
        return await self.workforce.hands.count()

    async def start(self) -> None:
        await self.experiments.open(rules(self.spec))
        self.experiments.start()

    @property
    def reports(self) -> dict[str, Any]:
        return self.experiments.experiment_json("x")

    @property
    def status(self) -> str:
        return str(self.reports["status"])

    @property
    def served(self) -> int:
        """The requests counted so far, over all arms."""
        return sum(sum(each.requests) for each in self.workforce.counted.values())

    @property
    def shares(self) -> dict[str, float]:
        return dict(self.workforce.weights.get("x") or weights_of(self.spec))


def with_gateways(server: RedisServer, go: Callable[[Gateway, Gateway], Awaitable[None]], lease: float = 300.0) -> None:
    """Run `go` with two gateways, of which the first leads."""

    async def run() -> None:
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(stored(server)) for _ in range(2)]
            one, other = (
                Gateway(name, store, seed, Engine(), lease=lease)
                for name, store, seed in zip("ab", stores, (1, 2), strict=True)
            )
            await one.start()
            await eventually(lambda: one.experiments.is_leader)
            await other.start()
            try:
                await go(one, other)
            finally:
                await other.experiments.close()
                await one.experiments.close()

    asyncio.run(run())


def test_gateways_go_together(redis_server: RedisServer) -> None:
    """The counts of both gateways are added up, and both use the same shares; a follower reports the leader's
    comparisons."""

    async def go(one: Gateway, other: Gateway) -> None:
        await eventually(lambda: one.status == other.status == "finished")
        assert one.shares == other.shares == {"old": 0.0, "new": 1.0}
        assert one.experiments.is_leader and not other.experiments.is_leader
        await eventually(lambda: other.reports["comparisons"] != {})
        requests = other.reports["arms"][1]["counts"]["requests"]
        alone = max(sum(each.requests) for key, each in one.workforce.counted.items() if key.arm == "new")
        assert requests > 200 and alone > 0
        assert [each["action"] for each in await other.experiments.decisions(9)] == ["finished", "advanced", "started"]

    with_gateways(redis_server, go)


def test_the_fuse_of_a_follower_blows_for_all(redis_server: RedisServer) -> None:
    """The fuse of any gateway stops the arm on all gateways, leader or not."""

    async def go(one: Gateway, other: Gateway) -> None:
        one.rate = 0
        await eventually(lambda: other.status == "running")
        other.workforce.engines = {**other.workforce.engines, "new": Engine(error_rate=1.0)}
        await eventually(lambda: one.status == other.status == "rolled_back")
        assert one.shares == other.shares == {"old": 1.0, "new": 0.0}

    with_gateways(redis_server, go)


def test_a_ramp_outlives_its_leader(redis_server: RedisServer) -> None:
    """When the leader's lease ends, another gateway leads and continues with the stored evidence."""

    async def go(one: Gateway, other: Gateway) -> None:
        one.rate = other.rate = 4
        await eventually(lambda: one.reports["arms"][1]["counts"]["requests"] > 20)
        assert one.experiments._task is not None
        one.experiments._task.cancel()  # as a crash would end it: it leaves nothing behind
        counted = one.reports["arms"][1]["counts"]["requests"]
        other.rate = 0
        await eventually(lambda: other.experiments.is_leader)
        await eventually(lambda: other.reports["arms"][1]["counts"]["requests"] > 0.7 * counted)
        assert other.status == "running"

    with_gateways(redis_server, go, lease=0.5)


def test_while_redis_is_away_nothing_goes_on(redis_server: RedisServer) -> None:
    """During an outage shares stay and the fuse of each gateway still works; afterwards all gateways agree, and an
    empty Redis gets the state again."""

    async def go(one: Gateway, other: Gateway) -> None:
        one.rate = other.rate = 5
        await eventually(lambda: one.status == other.status == "running")
        redis_server.pause()
        try:
            await eventually(lambda: one.reports["is_away"] and other.reports["is_away"])
            one.rate = other.rate = 100
            served = one.served, other.served
            await eventually(lambda: one.served > served[0] + 1000 and other.served > served[1] + 1000)
            assert one.shares == other.shares == {"old": 0.75, "new": 0.25}
            other.workforce.engines = {**other.workforce.engines, "new": Engine(error_rate=1.0)}
            await eventually(lambda: other.shares == {"old": 1.0, "new": 0.0})
            assert one.shares == {"old": 0.75, "new": 0.25}
        finally:
            redis_server.resume()
        await eventually(lambda: one.shares == {"old": 1.0, "new": 0.0})
        redis_server.client.flushall()
        await eventually(lambda: bool(redis_server.client.hlen("pointsman:1:experiments:{all}")))
        served = one.served, other.served
        await eventually(lambda: one.served > served[0] + 1000 and other.served > served[1] + 1000)
        assert one.status == other.status == "rolled_back"

    with_gateways(redis_server, go)


def test_any_gateway_takes_commands(redis_server: RedisServer) -> None:
    """A follower accepts commands."""

    async def go(one: Gateway, other: Gateway) -> None:
        one.rate = other.rate = 0
        await eventually(lambda: one.status == other.status == "running")
        await other.experiments.command(
            "x", "rolled_back", lambda trial, *rest: runs.roll_back(trial.spec, *rest, "ann", "no"), "ann", "no"
        )
        await eventually(lambda: one.shares == {"old": 1.0, "new": 0.0})
        (last, *_) = await one.experiments.decisions(1)
        assert (last["by"], last["reason"], last["action"]) == ("ann", "no", "rolled_back")

    with_gateways(redis_server, go)
