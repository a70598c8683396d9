"""Limits that two gateways of two workers share by one Redis: under load, with workers killed, with Redis gone."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from tests.dataplane.stage import Client, post
from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

RULES = """
version: 1
engines: {{it: {{endpoints: ['{url}']}}}}
routes:
  - {{name: fast, match: {{model: fast}}, engine: it}}
  - {{name: slow, match: {{model: slow}}, engine: it}}
limits:
  - {{name: rate, routes: fast, per: tenant, requests_per_second: 100}}
  - {{name: narrow, routes: slow, per: tenant, concurrency: 4}}
"""
# What four workers may admit beyond burst and rate: a twentieth of the burst each.
AHEAD = 4 * 5


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis")).start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def gateways(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    with CannedEngine("a") as engine:
        rules = RULES.format(url=engine.url)
        folder = tmp_path_factory.mktemp("gateways")
        started = [
            GatewayProcess.start(
                rules, folder / name, workers=2, redis=redis_server.url, extra_args=("--redis-deadline", "10")
            )  # so long that a busy machine does not look like an outage
            for name in ("one", "other")
        ]
        yield [gateway.wait_ready() for gateway in started]
        for gateway in started:
            gateway.stop()


def offer(gateways: list[GatewayProcess], tenant: str, rate: float, seconds: float) -> tuple[int, int, float]:
    """Send `rate` requests per second, spread over all workers. Returns the numbers of admitted and refused requests,
    and the duration in seconds."""
    ask = post("/v2/models/fast/infer", b'{"inputs": []}', f"X-Tenant: {tenant}")
    connections = 40
    admitted = refused = 0

    async def one(port: int, number: int) -> None:
        nonlocal admitted, refused
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        begin = time.monotonic() + number / rate
        for turn in range(int(rate * seconds / connections)):
            await asyncio.sleep(max(0.0, begin + turn * connections / rate - time.monotonic()))
            reply = await client.ask(ask)
            admitted += reply.status == 200
            refused += reply.status == 429
        client.close()

    async def all_of_them() -> None:
        ports = [gateway.http_port for gateway in gateways]
        await asyncio.gather(*[one(ports[number % len(ports)], number) for number in range(connections)])

    started_at = time.monotonic()
    asyncio.run(all_of_them())
    return admitted, refused, time.monotonic() - started_at


def test_four_workers_admit_what_one_limit_says(gateways: list[GatewayProcess]) -> None:
    """With 100 requests per second, a burst of 100 and 400 offered, the admitted number stays within the documented
    bound and reaches at least 90 % of the limit."""
    admitted, refused, took = offer(gateways, "rate", 400, 3)
    assert admitted + refused == 1200
    assert admitted <= 100 + 100 * took + AHEAD
    assert admitted >= 0.9 * (100 + 100 * 3)


def hold(gateway: GatewayProcess, seconds: float) -> int:
    headers = {"x-tenant": "narrow", "x-sleep": str(seconds)}
    try:
        return plain_http.post(
            f"{gateway.http_url}/v2/models/slow/infer", content=b'{"inputs": []}', headers=headers, timeout=30
        ).status_code
    except httpx.TransportError:
        return 0


def in_use(gateway: GatewayProcess) -> int:
    return sum(limit["in_use"] for limit in plain_http.get(f"{gateway.admin_url}/limits").json()["limits"])


def test_what_killed_workers_held_comes_back(gateways: list[GatewayProcess]) -> None:
    """The slots of killed workers are released when their leases expire; until then the other gateway does not reuse
    them."""
    one, other = gateways
    with ThreadPoolExecutor(8) as clients:
        holding = [clients.submit(hold, one, 20) for _ in range(4)]
        eventually(lambda: in_use(one) == 4)
        assert hold(other, 0) == 429
        for child in psutil.Process(one.process.pid).children(recursive=True):
            if "gateway.worker" in " ".join(child.cmdline()):
                child.kill()
        assert hold(other, 0) == 429
        assert [each.result() for each in holding] == [0] * 4

        def all_four() -> bool:
            held = [clients.submit(hold, other, 0.3) for _ in range(4)]
            return [each.result() for each in held] == [200] * 4

        eventually(all_four)
    eventually(lambda: plain_http.get(f"{one.http_url}/v2/health/live").status_code == 200)


def test_without_redis_each_worker_keeps_to_its_share(
    gateways: list[GatewayProcess], redis_server: RedisServer
) -> None:
    """Without Redis each worker admits its share of the limit; once Redis is back, the limit is shared again."""
    for gateway in gateways:
        eventually(lambda gateway=gateway: is_shared(gateway))  # type: ignore[misc]
    redis_server.kill()
    admitted, refused, took = offer(gateways, "alone", 400, 2)
    assert admitted + refused == 800
    assert admitted <= 100 + 100 * took + AHEAD
    assert admitted >= 50
    redis_server.start()
    for gateway in gateways:
        eventually(lambda gateway=gateway: is_shared(gateway))  # type: ignore[misc]
    admitted, _, took = offer(gateways, "again", 400, 1)
    assert 100 <= admitted <= 100 + 100 * took + AHEAD


def is_shared(gateway: GatewayProcess) -> bool:
    return all(limit["shared"] for limit in plain_http.get(f"{gateway.admin_url}/limits").json()["limits"])
