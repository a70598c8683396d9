"""Load from grpcio itself, which Triton's clients use, with a deadline and metadata on every call.

Started as `python -m bench.grpc_client JSON` with a `GrpcLoad`, like `bench.grpc_load`. It costs more than most
proxies, so it limits the rate; the CPU figures are those of the proxy.
"""

import asyncio
import itertools
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any

import grpc

from bench import mixed, mixed_calls
from bench.closed_loop import Tally, answer_spec, closed_loop
from bench.grpc_messages import DEADLINE_SECONDS, EXCHANGES, MIXED, TENANT, GrpcLoad, trace
from bench.window import LoadResult, run_module
from gateway.wire.grpc import PREFIX_BYTES

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


async def many_at_a_time(load: GrpcLoad) -> LoadResult:
    """`load.connections` channels, each with `load.calls` calls at a time."""
    exchange, is_mixed = EXCHANGES[load.exchange], load.exchange == MIXED
    run, marks = secrets.token_hex(4), itertools.count(1)
    users = mixed_calls.Users(random.Random())
    next_message = mixed.in_turn(mixed_calls.framed_messages())
    channels: list[grpc.aio.Channel] = []
    tasks: list[asyncio.Task[None]] = []

    async def call_on(ask: Any, tally: Tally) -> None:
        while not tally.is_over:
            mark = f"{run}{next(marks):08x}"
            begun_at = time.perf_counter()
            try:
                request = next_message()[PREFIX_BYTES:] if is_mixed else exchange.request
                metadata = users.metadata() if is_mixed else (TENANT, trace(mark))
                reply = await ask(request, timeout=DEADLINE_SECONDS, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                tally.fail(f"a call ended with status {error.code().name}: {error.details()}")
                return
            if PREFIX_BYTES + len(reply) != load.reply_bytes:
                tally.fail(f"a reply had {len(reply)} bytes instead of {load.reply_bytes - PREFIX_BYTES}")
                return
            tally.units += 1
            tally.latencies_us.append((time.perf_counter() - begun_at) * 1e6)

    async def open_one(tally: Tally) -> None:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{load.port}", options=OPTIONS)
        channels.append(channel)
        ask = channel.unary_unary(exchange.path)
        tasks.extend(asyncio.create_task(call_on(ask, tally)) for _ in range(load.calls))

    try:
        return await closed_loop(open_one, load.connections, load.seconds, load.groups)
    finally:
        await asyncio.gather(*(channel.close() for channel in channels))
        await asyncio.gather(*tasks, return_exceptions=True)


def run_grpcio(load: GrpcLoad, cores: Sequence[int] | None) -> LoadResult:
    """Run this generator in a process of its own and wait for its result."""
    return run_module("bench.grpc_client", load, load.seconds, cores)


def run(load: GrpcLoad) -> LoadResult:
    return asyncio.run(many_at_a_time(load))


if __name__ == "__main__":
    answer_spec(GrpcLoad, run)
