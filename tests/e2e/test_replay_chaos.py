"""Sequences while engines drop connections or are drained, and Redis stops: every answer is right or an error."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.dataplane.adding import INFER, Sums, parameters
from tests.dataplane.stage import Engine
from tests.support import plain_http
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess

# The scene is over after so many answers: of drains and pauses there are several each second.
NUM_ANSWERS = 600
MIN_SECONDS = 5.0
NUM_CLIENTS = 12
# Errors that a client may get: the sequence has ended or may continue later, and Triton's error for one that has ended.
TOLD = (400, 503)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


class Scene:
    """Three engines behind two gateways of two workers."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engines = [Engine(self._script(Sums())) for _ in range(3)]
        self.answers: Counter[int] = Counter()
        self.is_over = False

    def _script(self, sums: Sums) -> Any:
        async def play(engine: Engine, received: Any, reader: Any, writer: Any) -> None:
            fate = self.chance.random()
            if fate > 0.01:
                await sums.by_rest(engine, received, reader, writer)
            if fate < 0.02:  # before or after it has read the input
                writer.transport.abort()

        return play

    def rules(self) -> str:
        urls = ", ".join(f"'{engine.url}'" for engine in self.engines)
        engine = f"it: {{endpoints: [{urls}], breaker: {{failures: 0}}, health: {{interval: 0}}}}"
        route = "{name: all, engine: it, session: {sequences: replay}}"
        return f"version: 1\nengines: {{{engine}}}\nroutes: [{route}]\n"

    async def sequences(self, clients: list[httpx.AsyncClient], who: int) -> None:
        """Run one sequence after another, each until an error ends it."""
        number = 1000 * who
        while not self.is_over:
            number, total, last = number + 1, 0, self.chance.randint(1, 25)
            for index in range(last + 1):
                value = self.chance.randint(0, 50)
                total += value
                step = parameters(number, value, start=not index, end=index == last)
                client = self.chance.choice(clients)
                answer = await client.post(INFER, json={"parameters": step, "inputs": []})
                self.answers[answer.status_code] += 1
                if answer.status_code != 200:
                    assert answer.status_code in TOLD, answer.text
                    break
                assert answer.json()["id"] == str(total), f"step {index} of {number} at {answer.headers}"

    async def ends(self) -> None:
        await asyncio.sleep(MIN_SECONDS)
        while self.answers[200] < NUM_ANSWERS:
            await asyncio.sleep(0.1)
        self.is_over = True

    async def drains(self, gateways: list[GatewayProcess]) -> None:
        async with httpx.AsyncClient(timeout=120) as client:
            while not self.is_over:
                await asyncio.sleep(0.2)
                path = f"/engines/it/endpoints/{self.chance.choice(['drain', 'undrain', 'undrain'])}"
                reply = {"url": self.chance.choice(self.engines).url, "by": "the test"}
                await client.post(self.chance.choice(gateways).admin_url + path, json=reply)

    async def pauses(self, redis: RedisServer) -> None:
        while not self.is_over:
            await asyncio.sleep(self.chance.random())
            redis.pause()
            await asyncio.sleep(self.chance.choice([0.02, 0.1, 0.3]))
            redis.resume()


def moved(gateways: list[GatewayProcess]) -> float:
    lines = [line for gateway in gateways for line in plain_http.get(gateway.admin_url + "/metrics").text.splitlines()]
    return sum(float(line.split()[-1]) for line in lines if line.startswith("pointsman_sequences_moved_total"))


def test_no_answer_is_wrong(redis: RedisServer, tmp_path: Path) -> None:
    """No sequence gets a wrong sum, which an engine that lacks an input would produce unnoticed."""
    scene = Scene(seed=1)

    async def play() -> None:
        for engine in scene.engines:
            await engine.start()
        folders = [tmp_path / "one", tmp_path / "other"]
        started = [GatewayProcess.start(scene.rules(), folder, workers=2, redis=redis.url) for folder in folders]
        gateways = [await asyncio.to_thread(gateway.wait_ready) for gateway in started]
        clients = [httpx.AsyncClient(base_url=gateway.http_url, timeout=120) for gateway in gateways for _ in range(6)]
        work = [scene.sequences(clients, who) for who in range(1, NUM_CLIENTS + 1)]
        try:
            await asyncio.gather(*work, scene.drains(gateways), scene.pauses(redis), scene.ends())
            assert await asyncio.to_thread(moved, gateways) > 5
        finally:
            redis.resume()
            for client in clients:
                await client.aclose()
            for gateway in gateways:
                await asyncio.to_thread(gateway.stop)
            for engine in scene.engines:
                engine.stop()

    asyncio.run(asyncio.wait_for(play(), 240))
