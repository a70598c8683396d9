"""A thousand concurrent calls by gRPC's own client and server, broken off at random, leave nothing behind and cost no
memory."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from tests.dataplane.grpc.peers import STREAM, UNARY
from tests.dataplane.grpc.stage import GrpcStage, gateway_tasks, grpc_stage, left_behind, many, request
from tests.dataplane.stage import run, until

CALLS, CONNECTIONS, ROUNDS = 1000, 4, 3


class RandomEngine(grpc.GenericRpcHandler):
    """Answers late, early, with an error, many times, or breaks off, at random."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def service(self, details: Any) -> Any:
        if details.method == STREAM:
            return grpc.stream_stream_rpc_method_handler(self.stream)
        if details.method == UNARY:
            return grpc.unary_unary_rpc_method_handler(self.unary)
        return grpc.unary_unary_rpc_method_handler(self.config)

    async def config(self, message: bytes, context: Any) -> bytes:
        return bytes(service_pb2.ModelConfigResponse().SerializeToString())

    async def unary(self, message: bytes, context: Any) -> bytes:
        await asyncio.sleep(self.dice.choice((0, 0, 0.01, 0.3)))
        if self.dice.random() < 0.1:
            await context.abort(grpc.StatusCode.INTERNAL, "by the dice")
        return message

    async def stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for message in messages:
            requested = service_pb2.ModelInferRequest.FromString(message)
            await asyncio.sleep(self.dice.choice((0, 0, 0.01, 0.1)))
            if self.dice.random() < 0.03:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "by the dice")
            reply = service_pb2.ModelStreamInferResponse()
            reply.infer_response.model_name, reply.infer_response.id = requested.model_name, requested.id
            reply.infer_response.raw_output_contents.append(bytes(self.dice.choice((0, 100, 70_000))))
            yield reply.SerializeToString()


@asynccontextmanager
async def engines(*names: str) -> AsyncIterator[dict[str, str]]:
    servers, urls = [], {}
    for name in names:
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers((RandomEngine(random.Random(name)),))
        urls[name] = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    yield urls
    for server in servers:
        await server.stop(None)


async def one_call(channel: Any, dice: random.Random, calls: list[Any]) -> str:
    """Make a call and return how it ended; a random patience may cancel it first. The call is stored in `calls`."""
    patience = dice.choice((0.001, 0.02, 0.1, 0.5, 600.0, 600.0))
    timeout = dice.choice((None, None, 0.05, 600.0))
    try:
        if dice.random() < 0.5:
            call = channel.unary_unary(UNARY)(
                request(dice.choice("ab"), raw_input_contents=[bytes(dice.choice((0, 90_000)))]), timeout=timeout
            )
            calls.append(call)
            await asyncio.wait_for(call, patience)
        else:
            ids = [str(number) for number in range(dice.randrange(6))]
            call = channel.stream_stream(STREAM)(messages(ids, dice), timeout=timeout)
            calls.append(call)
            await asyncio.wait_for(conversation(call, ids), patience)
    except (TimeoutError, asyncio.CancelledError):
        call.cancel()
        return "left"
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "well"


async def messages(ids: list[str], dice: random.Random) -> AsyncIterator[bytes]:
    for number in ids:
        yield request(dice.choice("ab"), number)
        await asyncio.sleep(0)


async def conversation(call: Any, ids: list[str]) -> None:
    reply = []
    async for message in call:
        response = service_pb2.ModelStreamInferResponse.FromString(message)
        reply.append(response.infer_response.id)
    assert reply == ids, (reply, ids)


async def one_round(it: GrpcStage, dice: random.Random) -> dict[str, int]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{it.port}", options) for _ in range(CONNECTIONS)]
    calls: list[Any] = []  # gRPC's tasks end well only while their calls are referenced
    found = await asyncio.gather(*[one_call(channels[number % CONNECTIONS], dice, calls) for number in range(CALLS)])
    for channel in channels:
        await channel.close()
    return {end: found.count(end) for end in sorted(set(found))}


def test_a_thousand_calls_at_a_time(tmp_path: Path) -> None:
    """However the calls end, all counts return to zero, and repeated rounds do not increase memory."""

    async def whole() -> None:
        async with engines("a", "b") as urls, grpc_stage(many(urls), tmp_path) as it:
            it.plane.request_log.access_log = None  # the stage's log, which grows
            sizes = []
            for number in range(ROUNDS):
                ends = await one_round(it, random.Random(number))
                assert {"well", "left", "INTERNAL", "DEADLINE_EXCEEDED"} <= ends.keys(), ends
                await until(lambda: not any(each.http2.streams for each in it.plane.connections))
                await until(lambda: not left_behind(it.plane, []))
                assert it.in_flight() == 0 and not gateway_tasks()
                gc.collect()
                if number == 0:
                    tracemalloc.start()
                sizes.append(of_gateway())
            tracemalloc.stop()
            assert sizes[-1] - sizes[1] < 100_000, sizes
            it.plane.drain()  # gRPC's channels close slowly

    run(whole())


def of_gateway() -> int:
    """Bytes allocated by the gateway's own code."""
    traces = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/gateway/*")])
    return sum(trace.size for trace in traces.traces)
