"""Limits on calls, and on the messages of streams."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.dataplane.grpc.peers import STREAM, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import GrpcStage, answers, grpc_rules, grpc_stage, request
from tests.dataplane.grpc.test_stream_call import Model, got
from tests.dataplane.grpc.test_unary_call import EXHAUSTED, UNAVAILABLE, answer
from tests.dataplane.stage import Engine, run, until
from tests.support.redis_server import RedisServer
from tests.support.shared_redis import redis_server, shared_server, stored

__all__ = ["redis_server", "shared_server"]

FEW = "requests_per_second: 0.001, burst: 3"


def scene(tmp_path: Path, play: Any, script: Any, limit: str, server: RedisServer | None = None) -> None:
    """Play with a client and an engine behind one route with one limit."""

    async def whole() -> None:
        engine = await GrpcEngine(script).start()
        text = grpc_rules(engine) + f"limits: [{{name: few, {limit}}}]\n"
        async with AsyncExitStack() as ends:
            store = await ends.enter_async_context(stored(server)) if server is not None else None
            it = await ends.enter_async_context(grpc_stage(text, tmp_path, store=store))
            await play(it, await it.grpc(), engine)
        await engine.stop()

    run(whole())


def in_use(it: GrpcStage) -> int:
    accounts = [account for limit in it.plane.limiter.limits for account in limit.accounts.values()]
    return sum(account.slots.in_use for account in accounts if account.slots is not None)


def test_a_call_beyond_a_limit_is_exhausted(tmp_path: Path) -> None:
    """The call gets RESOURCE_EXHAUSTED, with the limit's name in its message and OpenAI's fields as trailers. Each
    tenant has its own allowance."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        reply = [(await client.ask(request(), metadata=[("x-tenant", tenant)])).status for tenant in "aaabaa"]
        assert reply == [0, 0, 0, 0, EXHAUSTED, EXHAUSTED]
        call = await client.ask(request(), metadata=[("x-tenant", "a")])
        assert "limit 'few' is reached" in (call.value("grpc-message") or "")
        assert (call.value("x-pointsman-reason"), call.value("x-ratelimit-limit-requests")) == ("rate_limited", "3")
        assert int(call.value("retry-after") or 0) > 900
        assert len(engine.calls) == 4
        assert it.requests() == {200: 4, 429: 3}

    scene(tmp_path, play, answer, f"per: tenant, {FEW}")


def test_each_message_of_a_stream_counts(tmp_path: Path) -> None:
    """A message beyond the limit gets an error with its id at once, and the stream continues."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call(STREAM)
        for number in range(5):
            await call.send(request("m", str(number)))
        reply = await got(call, 5)
        assert [line for line in reply if len(line) == 1] == ["0", "1", "2"]
        refused = "limit 'few' is reached (0.001 requests per second)"
        assert [line[: len(refused) + 3] for line in reply if len(line) > 1] == [f"3: {refused}", f"4: {refused}"]
        await call.send(ended=True)
        assert (await call.over()).status == 0
        other = client.call(STREAM)
        await other.send(request("m", "x"), ended=True)
        await other.over()
        assert "limit 'few' is reached" in answers(other.messages)[0]

    scene(tmp_path, play, Model(), FEW)


def test_a_stream_holds_one_slot_as_long_as_it_lasts(tmp_path: Path, redis_server: RedisServer) -> None:
    """A second stream is refused until the first one ends, however it ends."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        for ends in (lambda call: call.reset(), lambda call: engine.break_connections()):
            call = client.call(STREAM)
            await call.send(request("m", "1"))
            assert await got(call, 1) == ["1"]
            assert in_use(it) == 1
            other = client.call(STREAM)
            await other.send(request("m", "2"))
            assert "limit 'few' is reached (1 requests" in (await got(other, 1))[0]
            other.reset()
            ends(call)
            await until(lambda: in_use(it) == 0)

    scene(tmp_path, play, Model(), "concurrency: 1", redis_server)


def test_a_call_that_is_converted_counts_once(tmp_path: Path) -> None:
    """A call that is converted for a REST engine counts as one request."""

    async def whole() -> None:
        engine = Engine()
        await engine.start()
        text = grpc_rules(engine) + f"limits: [{{name: few, {FEW}}}]\n"
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            reply = [(await client.ask(request())).status for _ in range(4)]
            assert reply[3] == EXHAUSTED and EXHAUSTED not in reply[:3]
            assert len(engine.received) == 3
        engine.stop()

    run(whole())


def test_a_call_whose_engine_is_gone_gives_its_slot_back(tmp_path: Path) -> None:
    """Each such call fails with UNAVAILABLE, and not because of the limit."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        engine.stop_listening()
        engine.break_connections()
        assert [(await client.ask(request())).status for _ in range(3)] == [UNAVAILABLE] * 3
        assert in_use(it) == 0

    scene(tmp_path, play, answer, "concurrency: 1")
