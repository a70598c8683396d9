"""Triton's sequences over two real Tritons: each stays on its server, whichever worker gets its requests."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
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
NUM_SEQUENCES = 1000
# Triton's model has sixteen slots for sequences on each server; further sequences wait.
AT_A_TIME = 24
# No sequence on a shared stream may wait for a slot that only a later one on that stream frees.
ON_A_STREAM = 6


@pytest.fixture(scope="module")
def tritons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TritonProcess]]:
    folder = tmp_path_factory.mktemp("tritons")
    only = ["--model-control-mode=explicit", "--load-model=accumulator"]
    with (
        TritonProcess.start(MODELS, extra_args=only, log_path=folder / "one.log") as one,
        TritonProcess.start(MODELS, extra_args=only, log_path=folder / "other.log") as other,
    ):
        yield [one.wait_ready(), other.wait_ready()]


@pytest.fixture(scope="module")
def gateways(tritons: list[TritonProcess], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[GatewayProcess]]:
    """Two gateways of two workers each, which share a Redis."""
    folder = tmp_path_factory.mktemp("gateways")
    endpoints = ", ".join(f"{{url: '{triton.http_url}', grpc: '{triton.grpc_url}'}}" for triton in tritons)
    engine = f"it: {{endpoints: [{endpoints}], balance: session}}"
    rules = f"version: 1\nengines: {{{engine}}}\nroutes: [{{name: all, engine: it}}]\n"
    with RedisServer(folder / "redis") as redis:
        started = [GatewayProcess.start(rules, folder / str(n), workers=2, redis=redis.url) for n in range(2)]
        yield [gateway.wait_ready() for gateway in started]
        for gateway in started:
            gateway.stop()


class Clients:
    """Several connections of each kind, so that requests of one sequence reach all workers."""

    def __init__(self, gateways: list[GatewayProcess]) -> None:
        self.grpc = [over_grpc.InferenceServerClient(gateway.grpc_url) for gateway in gateways for _ in range(4)]
        addresses = [gateway.http_url.removeprefix("http://") for gateway in gateways]
        self.http = [over_http.InferenceServerClient(address) for address in addresses for _ in range(4)]

    async def close(self) -> None:
        for client in (*self.grpc, *self.http):
            await client.close()


def value(library: Any, number: int) -> Any:
    made = library.InferInput("value", [1, 1], "INT32")
    made.set_data_from_numpy(np.array([[number]], dtype=np.int32))
    return made


async def answer(clients: Clients, chance: random.Random, number: int, **step: Any) -> int:
    """The result of a sequence's step, over a random connection."""
    if chance.random() < 0.5:
        requested = await chance.choice(clients.http).infer("accumulator", [value(over_http, number)], **step)
    else:
        requested = await chance.choice(clients.grpc).infer("accumulator", [value(over_grpc, number)], **step)
    return int(requested.as_numpy("total").item())


def test_a_thousand_sequences(gateways: list[GatewayProcess], tritons: list[TritonProcess]) -> None:
    """Over two Tritons, two gateways and four workers, with REST and gRPC mixed, every answer is right."""

    async def one(clients: Clients, sequence: int, places: asyncio.Semaphore) -> int:
        chance = random.Random(sequence)
        numbers = [chance.randint(-50, 50) for _ in range(chance.randint(1, 6))]
        total = 0
        async with places:
            for index, number in enumerate(numbers):
                step = {"sequence_start": index == 0, "sequence_end": index == len(numbers) - 1}
                total += number
                assert await answer(clients, chance, number, sequence_id=sequence, **step) == total
        return len(numbers)

    async def scene() -> None:
        clients = Clients(gateways)
        places = asyncio.Semaphore(AT_A_TIME)
        counts = await asyncio.gather(*(one(clients, sequence, places) for sequence in range(1, NUM_SEQUENCES + 1)))
        assert sum(counts) > 2 * NUM_SEQUENCES
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_sequences_that_share_streams(gateways: list[GatewayProcess]) -> None:
    """Sequences whose steps are interleaved on streams stay on their servers, and each stream answers in order."""

    async def stream(client: Any, first: int, chance: random.Random) -> None:
        steps: list[dict[str, Any]] = []
        totals: list[int] = []
        left = {first + number: (4, 0) for number in range(ON_A_STREAM)}
        while left:
            sequence = chance.choice(list(left))
            more, total = left[sequence]
            number = chance.randint(-50, 50)
            totals.append(total + number)
            steps.append(
                {
                    "model_name": "accumulator",
                    "inputs": [value(over_grpc, number)],
                    "sequence_id": sequence,
                    "sequence_start": more == 4,
                    "sequence_end": more == 1,
                }
            )
            left[sequence] = (more - 1, total + number)
            if more == 1:
                del left[sequence]

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for step in steps:
                yield step

        reply = []
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            reply.append(int(result.as_numpy("total").item()))
            if len(reply) == len(steps):
                break
        assert reply == totals

    async def scene() -> None:
        clients = Clients(gateways)
        for turn in range(5):
            await asyncio.gather(
                *(
                    stream(client, 10_000 + 100 * turn + ON_A_STREAM * index, random.Random(turn * 10 + index))
                    for index, client in enumerate(clients.grpc[::3])
                )
            )
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 120))


def test_a_sequence_goes_on_by_another_way(gateways: list[GatewayProcess]) -> None:
    """A sequence that starts on a stream continues by unary calls and by REST, at the other gateway too."""

    async def scene() -> None:
        clients = Clients(gateways)
        chance = random.Random(1)
        for sequence in range(20_000, 20_020):

            async def start(sequence: int = sequence) -> AsyncIterator[dict[str, Any]]:
                yield {
                    "model_name": "accumulator",
                    "inputs": [value(over_grpc, 5)],
                    "sequence_id": sequence,
                    "sequence_start": True,
                }

            async for result, error in chance.choice(clients.grpc).stream_infer(start()):
                assert error is None, error
                assert result.as_numpy("total").item() == 5
                break
            assert await answer(clients, chance, 2, sequence_id=sequence) == 7
            assert await answer(clients, chance, 3, sequence_id=sequence, sequence_end=True) == 10
        await clients.close()

    asyncio.run(asyncio.wait_for(scene(), 120))
