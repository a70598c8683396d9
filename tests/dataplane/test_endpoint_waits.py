"""Requests that wait while no endpoint of their engine is up."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.config.engine_specs import EndpointSpec
from gateway.dataplane.context.worker_counters import counters_of
from gateway.protocol.engine_load import Readiness
from tests.dataplane.authenticated import Keys
from tests.dataplane.grpc.peers import GrpcEngine
from tests.dataplane.grpc.stage import RESULT, grpc_stage, many, request
from tests.dataplane.stage import Engine, Stage, load, post, rules, run, stage, until
from tests.support.ports import free_port

WAITS = "wait_for_endpoint: 30s\n    retry: {attempts: 0}"


class LateEngine(Engine):
    """One that listens at its address only once it is started."""

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    async def start(self, **options: Any) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=1 << 20, **options)


def num_waiting(it: Stage) -> int:
    return it.plane.endpoint_waits.waiting.get("it", 0)


def test_requests_wait_for_an_engine_that_starts_late(tmp_path: Path) -> None:
    """Requests whose engine refuses connections wait, and are answered once it listens; what they waited is no part of
    the engine's timeout, and the worker counts them."""

    async def scene() -> None:
        engine = LateEngine()
        async with stage(rules(engine, options=f"{WAITS}\n    timeout: 5s"), tmp_path) as it:
            replies = [asyncio.ensure_future(it.ask(post())) for _ in range(10)]
            await until(lambda: num_waiting(it) == 10)
            assert dict(counters_of(it.plane).endpoint_waiting) == {"it": 10}
            await engine.start()
            assert {reply.status for reply in await asyncio.gather(*replies)} == {200}
            assert num_waiting(it) == 0
            assert counters_of(it.plane).endpoint_waits["it", "went_on"] >= 10
        engine.stop()

    run(scene())


def test_requests_wait_for_a_probe(tmp_path: Path) -> None:
    """Where the probes have found all endpoints down, requests wait without a connection until one is up again."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, options=WAITS), tmp_path) as it:
            key = ("it", engine.url)
            it.plane.update_health({key: Readiness.DOWN})
            reply = asyncio.ensure_future(it.ask(post()))
            await until(lambda: num_waiting(it) == 1)
            assert engine.num_connections == 0
            it.plane.update_health({key: Readiness.READY})
            assert (await reply).status == 200
        engine.stop()

    run(scene())


def test_rules_that_change_leave_them_waiting(tmp_path: Path) -> None:
    """Requests that wait while other rules come into force are answered as well, like those that come after."""

    async def scene() -> None:
        engine = LateEngine()
        text = rules(engine, options=WAITS)
        async with stage(text, tmp_path) as it:
            first = asyncio.ensure_future(it.ask(post()))
            await until(lambda: num_waiting(it) == 1)
            it.plane.use_rules(load(f"{text}  - {{name: more, match: {{model: x}}, engine: it}}\n", tmp_path), 2)
            second = asyncio.ensure_future(it.ask(post()))
            await until(lambda: num_waiting(it) == 2)
            await engine.start()
            assert [(await reply).status for reply in (first, second)] == [200, 200]
        engine.stop()

    run(scene())


@pytest.mark.parametrize("more", ["", "    breaker: {failures: 7}\n"])
def test_rules_that_change_the_engine_leave_them_waiting(tmp_path: Path, more: str) -> None:
    """Requests that wait go to the endpoints that the engine has by later rules: to one that a source has found since,
    and to one whose declaration has changed."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        (tmp_path / "list.yaml").write_text("[]")
        text = f"version: 1\nengines:\n  it:\n    endpoints: [{{file: list.yaml}}]\n    {WAITS}\n"
        routes = "routes:\n  - {name: all, engine: it}\n"
        key = ("it", engine.url)
        async with stage(text + routes, tmp_path) as it:
            if more:
                it.plane.set_endpoints({"it": (EndpointSpec(engine.url),)})
                it.plane.update_health({key: Readiness.DOWN})
            first = asyncio.ensure_future(it.ask(post()))
            await until(lambda: num_waiting(it) == 1)
            it.plane.use_rules(load(text + more + routes, tmp_path), 2)
            it.plane.set_endpoints({"it": (EndpointSpec(engine.url),)})
            it.plane.update_health({key: Readiness.READY})
            assert (await first).status == 200
        engine.stop()

    run(scene())


def test_waiting_has_an_end(tmp_path: Path) -> None:
    """A request that has waited as long as the rules say gets 503 with `retry-after`; one whose client leaves waits no
    more, and its limit's slot is free."""
    options = "wait_for_endpoint: 100ms\n    retry: {attempts: 0}"
    limits = "limits:\n  - {name: slots, concurrency: 1, max_wait: 20s}\n"

    async def scene() -> None:
        engine = LateEngine()
        async with stage(rules(engine, options=options) + limits, tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason, reply.headers["retry-after"]) == (503, "no_healthy_endpoint", "1")
            it.plane.update_health({("it", engine.url): Readiness.DOWN})
            client = await it.client()
            await client.send(post())
            client.close()
            assert (await it.ask(post())).status == 503
            await until(lambda: num_waiting(it) == 0)

    run(scene())


def test_calls_wait(tmp_path: Path) -> None:
    """A gRPC call waits as well, at most until its own deadline."""

    async def answer(call: Any) -> None:
        await call.over()
        call.open()
        await call.send(RESULT)
        call.end()

    async def scene() -> None:
        port = free_port()
        engine = GrpcEngine(answer)
        text = many({"it": (f"grpc://127.0.0.1:{port}", WAITS)}, "  - {name: all, engine: it}\n")
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            late = await client.ask(request(), metadata=[("grpc-timeout", "50m")])
            assert late.status == 4
            call = asyncio.ensure_future(client.ask(request()))
            await until(lambda: num_waiting(it) == 1)
            await engine.start(port)
            assert (await call).messages == [RESULT]
        await engine.stop()

    run(scene())


def test_callers_that_are_kept_out_start_no_engine(tmp_path: Path) -> None:
    """An activator is wanted for requests that wait, not for those that `auth:` or `allow` refuse."""
    keys = Keys(tmp_path)
    options = f"{WAITS.replace('30s', '100ms')}\n    activator: {{url: 'http://127.0.0.1:9/start'}}"
    routes = "  - {name: all, engine: it, allow: {tenant: acme}}\n"
    text = rules(LateEngine(), options=options, routes=routes) + "auth: {keys: keys.yaml}\n"

    async def scene() -> None:
        async with stage(text, tmp_path) as it:
            wanted: list[str] = []
            it.plane.endpoint_waits.report = wanted.append
            it.plane.update_health({("it", endpoint.url): Readiness.DOWN for endpoint in it.endpoints()})
            for fields, status, calls in (
                ([], 401, 0),
                ([f"authorization: Bearer {keys.of['mallory']}"], 403, 0),
                ([f"authorization: Bearer {keys.of['ann']}"], 503, 1),
            ):
                reply = await it.ask(post("/v2/models/m/infer", b"{}", *fields))
                assert (reply.status, len(wanted)) == (status, calls)

    keys.add("evil", "mallory")
    keys.add("acme", "ann")
    run(scene())
