"""Sessions under load while their Redis is killed, paused, slow, full, corrupted or replaced by its replica."""

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil
import pytest

from tests.support import plain_http
from tests.support.canned_engine import CannedEngine
from tests.support.redis_server import RedisServer, program, watched
from tests.support.servers import GatewayProcess
from tests.support.slow_proxy import SlowProxy
from tests.support.waiting import eventually

SESSIONS = [f"s{number}" for number in range(24)]
# How long requests continue during the fault: a few hundred, from several clients.
FAULT_SECONDS = 1.0
NUM_CLIENTS = 3

Places = dict[str, str]


@pytest.fixture(scope="module", autouse=True)
def has_program() -> None:
    program()


@pytest.fixture(scope="module")
def engines() -> Iterator[list[CannedEngine]]:
    with CannedEngine("a") as a, CannedEngine("b") as b, CannedEngine("c") as c:
        yield [a, b, c]


class Stage:
    """A gateway of two workers before three engines, with sessions that were moved away from their hashed engine. Once
    the workers are replaced, only Redis holds those places."""

    def __init__(self, folder: Path, engines: Sequence[CannedEngine], redis: str) -> None:
        urls = ", ".join(f"'{engine.url}'" for engine in engines)
        engine = f"{{endpoints: [{urls}], balance: session, health: {{interval: 200ms, timeout: 60s}}}}"
        rules = f"version: 1\nengines: {{it: {engine}}}\n"
        rules += "routes: [{name: all, engine: it}]\n"
        # A deadline that a busy machine meets; no request should wait for longer.
        extra = ("--redis-deadline", "50ms")
        self.gateway = GatewayProcess.start(rules, folder, workers=2, redis=redis, extra_args=extra).wait_ready()
        self._first = engines[0].url
        self.places: Places = {}

    def move_some(self) -> None:
        """Move all sessions of the first engine to others, and keep them there."""
        self._drain("drain")
        self.places = self.where_all_are()
        assert set(self.places.values()) == {"b", "c"}
        self._drain("undrain")
        eventually(lambda: self.where_all_are() == self.places)

    def where_all_are(self) -> Places:
        """The engine of each session, over a new connection each; every request is answered."""
        return {session: self._ask(session) for session in SESSIONS}

    def others_know(self) -> bool:
        """Whether new workers find the sessions' places."""
        before = self._workers()
        for worker in before:
            worker.kill()
        eventually(
            lambda: (
                len(self._workers()) == 2
                and not {*before} & {*self._workers()}
                and self._metric("pointsman_workers") == 2
            )
        )
        eventually(lambda: self._metric("pointsman_redis_available") == 2)
        return eventually(lambda: self.where_all_are() == self.places)

    @contextlib.contextmanager
    def under_load(self) -> Iterator[None]:
        """Clients that send requests until the block ends; every request must have been answered."""
        is_over = threading.Event()
        reply: list[int | str] = []
        clients = [threading.Thread(target=self._keep_asking, args=(n, is_over, reply)) for n in range(NUM_CLIENTS)]
        for client in clients:
            client.start()
        try:
            yield
            eventually(lambda: len(reply) > 50)
        finally:
            is_over.set()
            for client in clients:
                client.join(120)
        assert set(reply) == {200}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gateway.stop()
        log = self.gateway.log()
        assert log.count("is left alone for a while") <= 12, log  # at most one line per process and fault

    def _keep_asking(self, number: int, is_over: threading.Event, reply: list[int | str]) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.http_port, timeout=120)
        while not is_over.is_set():
            for session in SESSIONS[number::NUM_CLIENTS]:
                try:
                    connection.request("POST", "/v2/models/m/infer", b"{}", {"x-session-id": session})
                    answer = connection.getresponse()
                    answer.read()
                    reply.append(answer.status)
                except OSError as error:
                    reply.append(repr(error))
        connection.close()

    def _ask(self, session: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.http_port, timeout=120)
        connection.request("POST", "/v2/models/m/infer", b"{}", {"x-session-id": session, "connection": "close"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, body
        served_by: str = json.loads(body)["served_by"]
        return served_by

    def _drain(self, verb: str) -> None:
        path = f"{self.gateway.admin_url}/engines/it/endpoints/{verb}"
        assert plain_http.post(path, json={"url": self._first}, timeout=120).json()["shared"]

    def _workers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.gateway.process.pid).children():
            with contextlib.suppress(psutil.Error):  # one that was killed and not yet reaped
                if "gateway.worker" in child.cmdline():
                    found.append(child)
        return found

    def _metric(self, name: str) -> float:
        lines = plain_http.get(self.gateway.admin_url + "/metrics").text.splitlines()
        return next((float(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), "--appendonly", "yes") as server:
        yield server


@pytest.fixture(scope="module")
def network(redis: RedisServer) -> Iterator[SlowProxy]:
    with SlowProxy(redis.port) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stage(engines: list[CannedEngine], network: SlowProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with Stage(tmp_path_factory.mktemp("stage"), engines, f"redis://127.0.0.1:{network.port}/0") as made:
        made.move_some()
        yield made


def kill_and_start(redis: RedisServer, network: SlowProxy) -> None:
    redis.kill()
    time.sleep(FAULT_SECONDS)
    redis.start()


def pause(redis: RedisServer, network: SlowProxy) -> None:
    redis.pause()
    time.sleep(FAULT_SECONDS)
    redis.resume()


def slow_down(redis: RedisServer, network: SlowProxy) -> None:
    network.delay = 0.2
    time.sleep(FAULT_SECONDS)
    network.delay = 0.0


def fill(redis: RedisServer, network: SlowProxy) -> None:
    redis.client.config_set("maxmemory", 1)
    time.sleep(FAULT_SECONDS)
    redis.client.config_set("maxmemory", 0)


def deface(redis: RedisServer, network: SlowProxy) -> None:
    """Replace every key that the gateway stores by another value, then restore the keys."""
    client = redis.client
    names = client.keys("pointsman:1:*")
    assert len(names) > len(SESSIONS)
    for name in names:
        client.rename(name, f"aside:{name}")
        client.set(name, "?")
    time.sleep(FAULT_SECONDS)
    for name in names:
        client.rename(f"aside:{name}", name)


@pytest.mark.parametrize("fault", [kill_and_start, pause, slow_down, fill, deface])
def test_no_request_fails_and_nothing_is_forgotten(
    stage: Stage, redis: RedisServer, network: SlowProxy, fault: Callable[[RedisServer, SlowProxy], None]
) -> None:
    """During each Redis fault under load every request is answered; afterwards new workers find each session at its
    engine."""
    with stage.under_load():
        fault(redis, network)
    assert stage.others_know()


def test_operators_reach_a_slow_redis_after_an_outage(stage: Stage, redis: RedisServer, network: SlowProxy) -> None:
    """A Redis that takes longer than a request may wait for it serves the admin API, before and after an outage."""
    page = f"{stage.gateway.admin_url}/conversations"
    network.delay = 0.02  # longer than the default of --redis-deadline
    try:
        assert plain_http.get(page).status_code == 200
        redis.kill()
        eventually(lambda: "left alone" in plain_http.get(page).text)
        redis.start()
        eventually(lambda: plain_http.get(page).status_code == 200)
    finally:
        network.delay = 0.0


def test_a_killed_redis_of_ones_own(engines: list[CannedEngine], tmp_path: Path) -> None:
    """The embedded Redis, killed under load, is restarted with all sessions, and no request fails."""
    with Stage(tmp_path, engines, "embedded") as stage:
        stage.move_some()
        with stage.under_load():
            children = psutil.Process(stage.gateway.process.pid).children()
            (server,) = [child for child in children if child.name() == "redis-server"]
            os.kill(server.pid, signal.SIGKILL)
            time.sleep(FAULT_SECONDS)
        assert stage.others_know()


def test_a_replica_takes_over(engines: list[CannedEngine], tmp_path: Path) -> None:
    """When the master dies under load, the gateway uses the master that the Sentinels promote, with all sessions."""
    with watched(tmp_path / "redis") as (master, replica, sentinels):
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in sentinels)
        with Stage(tmp_path / "gateway", engines, f"redis+sentinel://{hosts}/pointsman") as stage:
            stage.move_some()
            eventually(lambda: replica.client.dbsize() == master.client.dbsize())
            with stage.under_load():
                master.kill()
                eventually(lambda: replica.client.info("replication")["role"] == "master", 30)
            assert stage.others_know()
