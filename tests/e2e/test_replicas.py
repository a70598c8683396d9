"""Gateways that share a Redis: a change at one reaches all workers of all."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from gateway.events.event_bus import STREAM
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer, program
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

StartGateway = Callable[..., GatewayProcess]

# One connection per request, so that every worker gets some.
CLIENT = httpx.Client(headers={"connection": "close"}, timeout=120, trust_env=False)


@pytest.fixture(scope="module", autouse=True)
def has_program() -> None:
    program()


@pytest.fixture
def engines() -> Iterator[tuple[CannedEngine, CannedEngine]]:
    with CannedEngine("a") as a, CannedEngine("b") as b:
        yield a, b


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", "--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def rules(engines: tuple[CannedEngine, CannedEngine], more: str = "health: {interval: 200ms, timeout: 60s}") -> str:
    urls = ", ".join(f"'{engine.url}'" for engine in engines)
    return f"version: 1\nengines: {{it: {{endpoints: [{urls}], {more}}}}}\nroutes: [{{name: all, engine: it}}]\n"


def served_by(gateway: GatewayProcess, requests: int = 40) -> Counter[str]:
    """How many of the requests each engine answered."""
    found: Counter[str] = Counter()
    for _ in range(requests):
        answer = CLIENT.post(gateway.http_url + "/v2/models/m/infer", content=b"{}")
        assert answer.status_code == 200, answer.text
        found[answer.json()["served_by"]] += 1
    return found


def drain(gateway: GatewayProcess, engine: CannedEngine, undo: bool = False) -> bool:
    """Drain or undrain an endpoint. Returns whether the change is shared with the replicas."""
    path = f"/engines/it/endpoints/{'undrain' if undo else 'drain'}"
    answer = CLIENT.post(gateway.admin_url + path, json={"url": engine.url, "by": "the test"})
    assert answer.status_code == 200, answer.text
    shared: bool = answer.json()["shared"]
    return shared


def drained_at(gateway: GatewayProcess) -> list[str]:
    (engine,) = CLIENT.get(gateway.admin_url + "/engines").json()["engines"]
    return [endpoint["url"] for endpoint in engine["endpoints"] if endpoint["draining"] is not None]


def condition(gateway: GatewayProcess) -> str:
    """That of the first endpoint."""
    (engine,) = CLIENT.get(gateway.admin_url + "/engines").json()["engines"]
    found: str = engine["endpoints"][0]["condition"]
    return found


def test_a_drain_reaches_all_workers_of_all_replicas(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """An endpoint that is drained at one gateway gets no request from another, nor from a gateway that starts later,
    until it is undrained."""
    one, other = (start_gateway(rules(engines), workers=2, redis=redis.url) for _ in range(2))
    assert set(served_by(other)) == {"a", "b"}
    assert drain(one, engines[0])
    eventually(lambda: drained_at(other) == [engines[0].url])
    assert set(served_by(one)) == set(served_by(other)) == {"b"}
    later = start_gateway(rules(engines), redis=redis.url)
    assert set(served_by(later)) == {"b"}
    assert drain(later, engines[0], undo=True)
    eventually(lambda: drained_at(one) == drained_at(other) == [])
    assert set(served_by(one)) == set(served_by(other)) == {"a", "b"}


def test_installations_on_one_redis_are_apart_by_their_prefix(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """A gateway with a prefix of its own has all its keys under it, and shares no drain with one that has the default.
    A Redis that may evict them is told in the log of both."""
    redis.client.config_set("maxmemory", "64mb")
    redis.client.config_set("maxmemory-policy", "allkeys-lru")
    shared = rules(engines, "balance: session") + "limits: [{name: rate, per: tenant, requests_per_second: 1000}]\n"
    staging = start_gateway(shared, redis=redis.url, extra_args=["--redis-prefix", "staging"])
    assert drain(staging, engines[0])
    head = {"x-session-id": "s", "x-tenant": "t"}
    assert CLIENT.post(staging.http_url + "/v2/models/m/infer", content=b"{}", headers=head).json()["served_by"] == "b"
    eventually(lambda: redis.client.keys("staging:1:limit:*"))
    assert {key.partition(":")[0] for key in redis.client.keys("*")} == {"staging"}
    production = start_gateway(shared, redis=redis.url)
    assert drained_at(production) == []
    assert drained_at(staging) == [engines[0].url]
    for gateway in (staging, production):
        eventually(lambda gateway=gateway: "evicts any key when its memory is full" in gateway.log())


def test_a_drain_without_redis(start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine]) -> None:
    """Without Redis a drain holds in this gateway alone: for all its workers, for restarted ones, and under new rules.
    Where no other endpoint is left, a drained one serves."""
    gateway = start_gateway(rules(engines), workers=2)
    assert not drain(gateway, engines[0])
    assert set(served_by(gateway)) == {"b"}
    for worker in psutil.Process(gateway.process.pid).children():
        worker.kill()
    lines = lambda: CLIENT.get(gateway.admin_url + "/metrics").text  # noqa: E731
    eventually(lambda: "pointsman_worker_restarts_total 2.0" in lines() and "pointsman_workers 2.0" in lines())
    assert set(served_by(gateway)) == {"b"}
    assert f'pointsman_endpoint_draining{{endpoint="{engines[0].url}",engine="it"}} 1.0' in lines()
    gateway.rules_path.write_text(rules(engines, "balance: round_robin, health: {interval: 200ms, timeout: 60s}"))
    eventually(lambda: "pointsman_rules_number 2.0" in lines())
    assert set(served_by(gateway)) == {"b"}
    engines[1].kill()
    eventually(lambda: f'endpoint_healthy{{endpoint="{engines[1].url}",engine="it"}} 0.0' in lines())
    assert set(served_by(gateway)) == {"a"}


def test_a_drain_outlives_the_gateway_and_an_outage(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """A drain during a Redis outage holds here at once, is shared when Redis is back, and survives a restart of
    both."""
    one, other = (start_gateway(rules(engines), redis=redis.url) for _ in range(2))
    redis.kill()
    assert not drain(one, engines[0])
    assert set(served_by(one)) == {"b"}
    redis.start()
    eventually(lambda: drained_at(other) == [engines[0].url])
    one.stop()
    redis.kill()
    redis.start()
    assert drained_at(start_gateway(rules(engines), redis=redis.url)) == [engines[0].url]
    assert drained_at(other) == [engines[0].url]


def test_replicas_tell_their_rules(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """/rules lists the replicas with the digest of each one's rules, as they change, join and leave."""
    one, other = (start_gateway(rules(engines), redis=redis.url) for _ in range(2))

    def told() -> list[tuple[int, str]]:
        told = CLIENT.get(one.admin_url + "/rules").json()
        return [(int(replica["name"].rpartition(":")[2]), replica["digest"]) for replica in told["replicas"]]

    eventually(lambda: [pid for pid, _ in told()] == [one.process.pid, other.process.pid])
    assert len({digest for _, digest in told()}) == 1
    other.rules_path.write_text(rules(engines, "balance: round_robin"))
    eventually(lambda: len({digest for _, digest in told()}) == 2)
    other.stop()
    eventually(lambda: [pid for pid, _ in told()] == [one.process.pid])


def test_an_endpoint_that_goes_is_news(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """A replica that probes rarely gets the event from one that probes often that an endpoint is down, and probes it
    itself."""
    often = start_gateway(rules(engines), redis=redis.url)
    seldom = start_gateway(rules(engines, "health: {interval: 1h}"), redis=redis.url)
    assert set(served_by(seldom)) == {"a", "b"}
    engines[0].kill()
    eventually(lambda: condition(often) == "down")
    eventually(lambda: condition(seldom) == "down")


def test_a_replica_that_missed_events_probes_again(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer
) -> None:
    """A replica that was stopped and disconnected while another published that an endpoint is down, and Redis forgot
    the event, finds the gap and probes all endpoints, though it probes rarely."""
    often = start_gateway(rules(engines), redis=redis.url)
    seldom = start_gateway(rules(engines, "health: {interval: 1h}"), redis=redis.url)
    assert drain(often, engines[1])
    eventually(lambda: drained_at(seldom) == [engines[1].url])
    control = psutil.Process(seldom.process.pid)
    control.suspend()
    try:
        client = redis.client
        client.client_kill_filter(_type="normal")
        engines[0].kill()
        eventually(lambda: condition(often) == "down")
        eventually(lambda: client.xrevrange(STREAM, count=1)[0][1]["kind"] == "condition")
        client.xtrim(STREAM, maxlen=0, approximate=False)
    finally:
        control.resume()
    eventually(lambda: condition(seldom) == "down")


def test_a_worker_whose_control_process_is_gone_still_hears(
    start_gateway: StartGateway, engines: tuple[CannedEngine, CannedEngine], redis: RedisServer, tmp_path: Path
) -> None:
    """A worker whose control process was killed still gets drains from another gateway and detects endpoints that are
    down."""
    one = start_gateway(rules(engines), redis=redis.url)
    orphaned = GatewayProcess.start(rules(engines), tmp_path / "orphaned", redis=redis.url).wait_ready()
    (worker,) = psutil.Process(orphaned.process.pid).children()
    try:
        orphaned.crash()
        assert drain(one, engines[0])
        eventually(lambda: set(served_by(orphaned, 10)) == {"b"})
        assert drain(one, engines[0], undo=True)
        eventually(lambda: set(served_by(orphaned, 10)) == {"a", "b"})
        engines[1].kill()
        eventually(lambda: served_by(orphaned, 10) == {"a": 10})
    finally:
        worker.terminate()
        psutil.wait_procs([worker], timeout=120)
    assert not worker.is_running()
