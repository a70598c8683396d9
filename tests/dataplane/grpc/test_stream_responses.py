"""Random conversations over one stream: every response comes whole, once, and in its order."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import STREAM, Call, GrpcEngine
from tests.dataplane.grpc.stage import answers, grpc_stage, many, request, response
from tests.dataplane.grpc.test_stream_call import config, id_of, model_of
from tests.dataplane.protocol_bridge.test_grpc_to_rest import Model as RestModel
from tests.dataplane.protocol_bridge.test_grpc_to_rest import infer
from tests.dataplane.stage import Engine, run


class CuttingEngine:
    """Sends answers in random pieces with random pauses; a decoupled model sends up to three for each message."""

    def __init__(self, dice: random.Random, *, decoupled: bool) -> None:
        self.dice = dice
        self.decoupled = decoupled
        self.sent: list[str] = []

    async def __call__(self, call: Call) -> None:
        await asyncio.sleep(self.dice.choice((0, 0.002, 0.01)))
        if await config(call, decoupled=self.decoupled):
            return
        call.open()
        while (message := await call.message()) is not None:
            for _ in range(self.dice.randrange(4) if self.decoupled else 1):
                raw = bytes(self.dice.choice((0, 10, 3_000, 90_000)))
                await self.send(call, framed(response(model_of(message), id_of(message), raw=[raw])))
                self.sent.append(id_of(message))
        if not call.is_over or call.ended:
            call.end()

    async def send(self, call: Call, data: bytes) -> None:
        while data:
            size = self.dice.choice((1, 4, 5, 6, 2_000, len(data)))
            await call.send_raw(data[:size])
            data = data[size:]
            await asyncio.sleep(self.dice.choice((0, 0, 0.001)))


@pytest.mark.parametrize("seed", range(25))
def test_a_random_conversation(tmp_path: Path, seed: int) -> None:
    """Each model has its own engine: one is decoupled, one speaks REST alone, and one model has no engine."""
    dice = random.Random(seed)

    async def whole() -> None:
        scripts = {name: CuttingEngine(random.Random(seed), decoupled=name == "d") for name in "abd"}
        engines = {name: await GrpcEngine(script).start() for name, script in scripts.items()}
        rest = Engine(RestModel())
        await rest.start()
        async with grpc_stage(many({**engines, "r": rest}), tmp_path) as it:
            client = await it.grpc()
            for _ in range(3):
                models = dice.sample("abdrx", dice.randrange(1, 6))
                requests = [f"{dice.choice(models)}{number}" for number in range(dice.randrange(1, 20))]
                scripts["d"].sent.clear()
                call = client.call(STREAM)
                data = b"".join(framed((infer if each[0] == "r" else request)(each[0], each)) for each in requests)
                while data:
                    size = dice.choice((1, 7, 100, len(data)))
                    await call.send_raw(data[:size])
                    data = data[size:]
                    await asyncio.sleep(dice.choice((0, 0, 0.003)))
                await call.send_raw(b"", ended=True)
                await call.over()
                assert call.status == 0, call
                reply = [each.partition(":")[0] for each in answers(call.messages)]
                assert [each for each in reply if each[0] != "d"] == [each for each in requests if each[0] != "d"]
                assert [each for each in reply if each[0] == "d"] == scripts["d"].sent
        for engine in engines.values():
            await engine.stop()
        rest.stop()

    run(whole())
