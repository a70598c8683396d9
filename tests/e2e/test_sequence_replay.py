"""Sequences outlive their Triton: their inputs are replayed to another one."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import tritonclient.grpc.aio as over_grpc
import tritonclient.http.aio as over_http
from tritonclient.utils import InferenceServerException

from gateway.demo.triton import TritonProcess
from tests.support import plain_http
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

pytestmark = pytest.mark.triton

MODELS = Path(__file__).parents[1] / "models"
# Triton's model has sixteen slots for sequences, and one server must hold all of them after the other is killed.
NUM_SEQUENCES = 12
NUM_STEPS = 12
MAX_STEPS = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def tritons(folder: Path) -> Iterator[list[TritonProcess]]:
    only = ["--model-control-mode=explicit", "--load-model=accumulator"]
    with (
        TritonProcess.start(MODELS, extra_args=only, log_path=folder / "one.log") as one,
        TritonProcess.start(MODELS, extra_args=only, log_path=folder / "other.log") as other,
    ):
        yield [one.wait_ready(), other.wait_ready()]


@pytest.fixture(scope="module")
def redis(folder: Path) -> Iterator[RedisServer]:
    with RedisServer(folder / "redis") as server:
        yield server


@pytest.fixture(scope="module")
def gateway(tritons: list[TritonProcess], redis: RedisServer, folder: Path) -> Iterator[GatewayProcess]:
    endpoints = ", ".join(f"{{url: '{triton.http_url}', grpc: '{triton.grpc_url}'}}" for triton in tritons)
    engine = f"it: {{endpoints: [{endpoints}], balance: session, health: {{interval: 200ms, timeout: 60s}}}}"
    route = f"{{name: all, engine: it, session: {{sequences: {{max_steps: {MAX_STEPS}}}}}}}"
    rules = f"version: 1\nengines: {{{engine}}}\nroutes: [{route}]\n"
    gateway = GatewayProcess.start(rules, folder / "gateway", workers=2, redis=redis.url)
    yield gateway.wait_ready()
    gateway.stop()


class Clients:
    """Several connections of each kind, so that requests of one sequence reach both workers."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.grpc = [over_grpc.InferenceServerClient(gateway.grpc_url) for _ in range(4)]
        self.http = [over_http.InferenceServerClient(gateway.http_url.removeprefix("http://")) for _ in range(4)]

    async def step(self, chance: random.Random, number: int, **step: Any) -> int:
        """The result of a sequence's step, over a random connection."""
        library: Any = over_http if chance.random() < 0.5 else over_grpc
        value = library.InferInput("value", [1, 1], "INT32")
        value.set_data_from_numpy(np.array([[number]], dtype=np.int32))
        client = chance.choice(self.http if library is over_http else self.grpc)
        answered = await client.infer("accumulator", [value], **step)
        return int(answered.as_numpy("total").item())

    async def close(self) -> None:
        for client in (*self.grpc, *self.http):
            await client.close()


def place(redis: RedisServer, sequence: int) -> str | None:
    """The endpoint of a running sequence."""
    return cast("str | None", redis.client.hget(f"pointsman:1:sequence:{{accumulator:{sequence}}}", "at:it"))


def moved(gateway: GatewayProcess, reason: str) -> float:
    """How many sequences have moved to another endpoint."""
    lines = plain_http.get(gateway.admin_url + "/metrics").text.splitlines()
    reply = [line for line in lines if line.startswith("pointsman_sequences_moved_total") and f'"{reason}"' in line]
    return sum(float(line.split()[-1]) for line in reply)


async def begin_at(clients: Clients, redis: RedisServer, url: str, first: int) -> int:
    """Start sequences until one is at this Triton; the others end at once."""
    for sequence in range(first, first + 50):
        assert await clients.step(random.Random(sequence), 1, sequence_id=sequence, sequence_start=True) == 1
        await asyncio.to_thread(eventually, lambda sequence=sequence: place(redis, sequence))  # type: ignore[misc]
        if place(redis, sequence) == url:
            return sequence
        await clients.step(random.Random(sequence), 1, sequence_id=sequence, sequence_end=True)
    raise AssertionError("hashing gives it none")


def test_a_drained_triton_hands_its_sequences_over(
    gateway: GatewayProcess, tritons: list[TritonProcess], redis: RedisServer
) -> None:
    """At their next request the sequences continue at the other Triton with the right sum."""
    url = tritons[0].http_url

    async def scene() -> None:
        clients = Clients(gateway)
        chance = random.Random(1)
        mine = [await begin_at(clients, redis, url, first) for first in (1000, 1100, 1200)]
        path = f"{gateway.admin_url}/engines/it/endpoints"
        assert plain_http.post(f"{path}/drain", json={"url": url, "by": "the test"}).status_code == 200
        for sequence in mine:
            assert await clients.step(chance, 5, sequence_id=sequence) == 6
            assert await clients.step(chance, 5, sequence_id=sequence, sequence_end=True) == 11
        assert plain_http.post(f"{path}/undrain", json={"url": url, "by": "the test"}).status_code == 200
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 120))
    eventually(lambda: moved(gateway, "drained") == 3)


def test_sequences_outlive_their_triton(
    gateway: GatewayProcess, tritons: list[TritonProcess], redis: RedisServer
) -> None:
    """One of two Tritons is killed in the middle of many sequences. Each continues at the other one over any worker and
    protocol, and every answer is right. A sequence too long to replay ends with an error that says so."""
    url = tritons[0].http_url
    half = asyncio.Event()

    async def one(clients: Clients, sequence: int, halves: list[int]) -> None:
        chance = random.Random(sequence)
        total = 0
        for index in range(NUM_STEPS):
            number = chance.randint(-50, 50)
            total += number
            step = {"sequence_start": index == 0, "sequence_end": index == NUM_STEPS - 1}
            assert await clients.step(chance, number, sequence_id=sequence, **step) == total
            await asyncio.sleep(chance.random() * 0.02)
            if index == NUM_STEPS // 2:
                halves.append(sequence)
                if len(halves) == NUM_SEQUENCES // 2:
                    half.set()

    async def too_long(clients: Clients) -> int:
        sequence = await begin_at(clients, redis, url, 2000)
        for index in range(MAX_STEPS):
            assert await clients.step(random.Random(index), 1, sequence_id=sequence) == index + 2
        return sequence

    async def without_redis(clients: Clients) -> int:
        """A step during a Redis outage is refused and changes nothing."""
        sequence = await begin_at(clients, redis, url, 3000)
        redis.pause()
        try:
            with pytest.raises(InferenceServerException, match="is by now: Redis does not answer"):
                await clients.step(random.Random(1), 100, sequence_id=sequence)
        finally:
            redis.resume()
        assert await clients.step(random.Random(1), 1, sequence_id=sequence) == 2
        return sequence

    async def scene() -> None:
        clients = Clients(gateway)
        long, blind = await too_long(clients), await without_redis(clients)
        halves: list[int] = []
        requests = [asyncio.ensure_future(one(clients, number, halves)) for number in range(1, NUM_SEQUENCES + 1)]
        await half.wait()
        assert url in [place(redis, number) for number in range(1, NUM_SEQUENCES + 1)]
        await asyncio.to_thread(tritons[0].kill)
        await asyncio.gather(*requests)
        assert await clients.step(random.Random(2), 1, sequence_id=blind, sequence_end=True) == 3
        with pytest.raises(InferenceServerException) as raised:
            await clients.step(random.Random(1), 1, sequence_id=long)
        assert "its inputs cannot be replayed: they are more than 20 (max_steps)" in str(raised.value)
        assert url in str(raised.value)
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 120))
    eventually(lambda: moved(gateway, "lost") > 0)
    eventually(
        lambda: not list(redis.client.scan_iter("pointsman:1:inputs:*"))
    )  # a worker deletes them after its reply
