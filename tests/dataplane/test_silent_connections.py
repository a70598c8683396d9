"""Connections to engines that fall silent, as where a NAT or a firewall has lost their state, are replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec, HealthSpec
from gateway.protocol.engine_load import Readiness
from gateway.upstream.health import Findings, Prober
from tests.dataplane.grpc.peers import Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, grpc_stage, request
from tests.dataplane.stage import Engine, Reply, post, run, stage, until
from tests.support.slow_proxy import SlowProxy

DEADLINE_EXCEEDED = "4"


def rules(url: str, options: str) -> str:
    engine = f"  it:\n    endpoints: ['{url}']\n    health: {{interval: 0}}\n    {options}\n"
    return f"version: 1\nengines:\n{engine}routes:\n  - {{name: all, engine: it}}\n"


async def ask(client: GrpcClient) -> str:
    """The status of a call."""
    call = await client.ask(request())
    return dict(call.trailers or call.fields)["grpc-status"]


def test_calls_recover_after_the_first_timeout(tmp_path: Path) -> None:
    """A call that times out on a silent connection is the last one there: the next call gets another connection."""

    async def whole() -> None:
        engine = await GrpcEngine(answer).start()
        with SlowProxy(int(engine.address.partition(":")[2])) as proxy:
            text = rules(f"grpc://127.0.0.1:{proxy.port}", "timeout: 700ms")
            async with grpc_stage(text, tmp_path) as it:
                client = await it.grpc()
                assert await ask(client) == "0"
                assert proxy.fall_silent() == 1
                assert await ask(client) == DEADLINE_EXCEEDED
                assert [await ask(client) for _ in range(5)] == ["0"] * 5
                assert len(engine.peers) == 2
        await engine.stop()

    run(whole())


def test_a_call_without_a_time_limit_moves_to_another_connection(tmp_path: Path) -> None:
    """A PING finds that the connection is dead, and the call is made again where that does no harm."""

    async def late(call: Call) -> None:
        if len(engine.calls) > 1:
            await answer(call)

    engine = GrpcEngine(late)

    async def whole() -> None:
        await engine.start()
        options = "timeout: 0\n    retry: {idempotent: infer, attempts: 5}\n    "
        options += "connections: {keepalive_interval: 100ms, keepalive_timeout: 1s}"
        with SlowProxy(int(engine.address.partition(":")[2])) as proxy:
            async with grpc_stage(rules(f"grpc://127.0.0.1:{proxy.port}", options), tmp_path) as it:
                client = await it.grpc()
                call = client.call()
                await call.send(request(), ended=True)
                await until(lambda: any(each.ended for each in engine.calls))
                assert proxy.fall_silent() == 1
                await call.over()
                assert dict(call.trailers)["grpc-status"] == "0"
                assert it.errors() == {}
        await engine.stop()

    run(whole())


def test_rest_pays_one_timeout(tmp_path: Path) -> None:
    """A request that times out closes those that have been idle meanwhile: their requests do not time out."""
    num_pooled = 5

    async def answer_together(engine: Engine, *args: Any) -> None:
        """Answer the first requests once all of them are there, so that each has a connection."""
        if len(engine.received) >= num_pooled:
            together.set()
        await together.wait()
        args[2].write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    together = asyncio.Event()

    async def whole() -> None:
        engine = Engine(answer_together)
        await engine.start()
        with SlowProxy(int(engine.url.rpartition(":")[2])) as proxy:
            async with stage(rules(f"http://127.0.0.1:{proxy.port}", "timeout: 700ms"), tmp_path) as it:
                replies: list[Reply] = await asyncio.gather(*[it.ask(post()) for _ in range(num_pooled)])
                assert [reply.status for reply in replies] == [200] * num_pooled
                assert proxy.fall_silent() == num_pooled
                statuses = [(await it.ask(post())).status for _ in range(num_pooled)]
                assert statuses == [504] + [200] * (num_pooled - 1)
        engine.stop()

    run(whole())


async def answer(call: Call) -> None:
    await call.when(lambda: call.ended)
    call.open()
    message = b"\x08\x01" if call.value(":path").endswith("Ready") else RESULT
    await call.send(message)
    call.end()


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_the_prober_recovers(scheme: str) -> None:
    """A probe that times out is the last one on its connection: an endpoint that can be reached is ready again."""

    async def whole() -> None:
        found: list[Readiness | None] = []

        def changed(findings: Findings) -> None:
            found.extend(findings.conditions.values())

        def num_probes() -> int:
            return len(rest.received) + len(grpc.calls)

        rest, grpc = Engine(), await GrpcEngine(answer).start()
        await rest.start()
        port = {"http": rest.url, "grpc": grpc.address}[scheme].rpartition(":")[2]
        with SlowProxy(int(port)) as proxy:
            url = f"{scheme}://127.0.0.1:{proxy.port}"
            health = HealthSpec(interval=0.02, timeout=1, unhealthy_after=1)
            prober = Prober(changed)
            prober.use({"it": EngineSpec("it", (EndpointSpec(url, url.partition("://")[2]),), health=health)})
            await until(lambda: found == [Readiness.READY])
            assert proxy.fall_silent()
            seen = num_probes()
            await until(lambda: num_probes() > seen + 3 and found[-1] is Readiness.READY)
            await prober.close()
        rest.stop()
        await grpc.stop()

    run(whole())
