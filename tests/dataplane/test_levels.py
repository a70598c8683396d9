"""Levels of endpoints on the real data plane: requests, retries and sessions."""

from __future__ import annotations

from pathlib import Path

from gateway.protocol.engine_load import Readiness
from tests.dataplane.stage import Engine, Stage, post, run, stage
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

INFER = "/v2/models/m/infer"


def leveled(near: list[Engine], far: list[Engine], *, zone: str, options: str = "") -> str:
    endpoints = [f"{{url: '{each.url}', zone: {place}}}" for place, all_ in (("a", near), ("b", far)) for each in all_]
    keys = f"locality: {{zone: {zone}}}, retry: {{idempotent: infer}}{options}"
    engine = f"{{endpoints: [{', '.join(endpoints)}], {keys}}}"
    return f"version: 1\nengines:\n  it: {engine}\nroutes: [{{name: all, engine: it}}]\n"


async def started(number: int) -> list[Engine]:
    engines = [Engine() for _ in range(number)]
    for engine in engines:
        await engine.start()
    return engines


async def served(it: Stage, engines: list[Engine], *requests: bytes) -> int:
    """How many of the requests these engines have got; all are answered."""
    before = sum(len(engine.received) for engine in engines)
    for request in requests:
        assert (await it.ask(request)).status == 200
    return sum(len(engine.received) for engine in engines) - before


def test_the_other_zone_serves_what_the_own_one_cannot(tmp_path: Path) -> None:
    """It gets nothing while the own one serves, retries of requests that this one breaks off, and all once it is
    down."""

    async def scene() -> None:
        near, far = await started(2), await started(2)
        async with stage(leveled(near, far, zone="a"), tmp_path) as it:
            requests = [post(INFER, b"{}")] * 10
            assert await served(it, far, *requests) == 0
            for engine in near:
                engine.stop()
            assert await served(it, far, *requests) == 10
            for endpoint in it.endpoints()[:2]:
                endpoint.condition = Readiness.DOWN
            assert await served(it, far, *requests) == 10
        for engine in far:
            engine.stop()

    run(scene())


def test_gateways_in_two_zones_agree_on_a_session(tmp_path: Path, redis_server: RedisServer) -> None:
    """Each places new sessions in its own zone; a session that the other one has placed stays where it is."""

    async def scene() -> None:
        near, far = await started(3), await started(3)
        sessions = [post(INFER, b"{}", f"X-Session-Id: s{number}") for number in range(12)]
        rules = [leveled(near, far, zone=zone, options=", balance: session") for zone in "ab"]
        async with (
            stored(redis_server) as one,
            stored(redis_server) as other,
            stage(rules[0], tmp_path, store=one) as it,
            stage(rules[1], tmp_path, store=other) as that,
        ):
            assert await served(it, near, *sessions) == 12
            assert await served(that, near, *sessions) == 12
            counts = [len(engine.received) for engine in near]
            assert await served(that, near, *sessions) == 12
            assert [len(engine.received) - count for engine, count in zip(near, counts, strict=True)] == [
                count // 2 for count in counts
            ]
            assert await served(that, far, post(INFER, b"{}", "X-Session-Id: new")) == 1
        for engine in (*near, *far):
            engine.stop()

    run(scene())
