"""Sequences outlive the Triton that they were on: another one is told what they had said."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as over_grpc
import tritonclient.http.aio as over_http

from gateway.demo.triton import TritonProcess
from tests.support.redis_server import RedisServer
from tests.support.servers import GatewayProcess

pytestmark = pytest.mark.triton

MODELS = Path(__file__).parents[1] / "models"
# Triton's model has sixteen places for sequences, which must do for all of them once one server is gone.
NUM_SEQUENCES = 14
NUM_STEPS = 12


@pytest.fixture
def tritons(tmp_path: Path) -> Iterator[list[TritonProcess]]:
    only = ["--model-control-mode=explicit", "--load-model=accumulator"]
    with (
        TritonProcess.start(MODELS, extra_args=only, log_path=tmp_path / "one.log") as one,
        TritonProcess.start(MODELS, extra_args=only, log_path=tmp_path / "other.log") as other,
    ):
        yield [one.wait_ready(), other.wait_ready()]


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def gateway(tritons: list[TritonProcess], redis: RedisServer, tmp_path: Path) -> Iterator[GatewayProcess]:
    endpoints = ", ".join(f"{{url: '{triton.http_url}', grpc: '{triton.grpc_url}'}}" for triton in tritons)
    engine = f"it: {{endpoints: [{endpoints}], balance: session, health: {{interval: 200ms}}}}"
    route = "{name: all, engine: it, session: {sequences: {on_loss: replay, max_steps: 50}}}"
    rules = f"version: 1\nengines: {{{engine}}}\nroutes: [{route}]\n"
    gateway = GatewayProcess.start(rules, tmp_path / "gateway", workers=2, redis=redis.url)
    yield gateway.wait_ready()
    gateway.stop()


class Clients:
    """Several connections of each kind, so that requests of one sequence come by both workers."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.grpc = [over_grpc.InferenceServerClient(gateway.grpc_url) for _ in range(4)]
        self.http = [over_http.InferenceServerClient(gateway.http_url.removeprefix("http://")) for _ in range(4)]

    async def step(self, chance: random.Random, number: int, **step: Any) -> int:
        """What a step of a sequence is answered, over a connection drawn by chance."""
        library: Any = over_http if chance.random() < 0.5 else over_grpc
        value = library.InferInput("value", [1, 1], "INT32")
        value.set_data_from_numpy(np.array([[number]], dtype=np.int32))
        client = chance.choice(self.http if library is over_http else self.grpc)
        answered = await client.infer("accumulator", [value], **step)
        return int(answered.as_numpy("total").item())

    async def close(self) -> None:
        for client in (*self.grpc, *self.http):
            await client.close()


def places(redis: RedisServer) -> list[Any]:
    """Where the sequences are that are under way."""
    return [redis.client.hget(key, "at:it") for key in redis.client.scan_iter("pointsman:1:sequence:*")]


def test_sequences_outlive_their_triton(
    gateway: GatewayProcess, tritons: list[TritonProcess], redis: RedisServer
) -> None:
    """One of two Tritons is killed in the middle of many sequences: each goes on at the other one, by whichever worker
    and protocol, and every answer is right."""
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

    async def scene() -> None:
        clients = Clients(gateway)
        halves: list[int] = []
        asked = [asyncio.ensure_future(one(clients, number, halves)) for number in range(1, NUM_SEQUENCES + 1)]
        await half.wait()
        assert tritons[0].http_url in await asyncio.to_thread(places, redis)
        await asyncio.to_thread(tritons[0].kill)
        await asyncio.gather(*asked)
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 60))
    assert list(redis.client.scan_iter("pointsman:1:inputs:*")) == []
