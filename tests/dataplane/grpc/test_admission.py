"""Limits on requests that are answered by coroutines: those for engines with a gRPC service of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.dataplane.translation.admission import Admission
from gateway.limits.pending import Grant
from gateway.protocol.errors import ErrorKind, GatewayError
from tests.dataplane.grpc.peers import Call, GrpcEngine
from tests.dataplane.grpc.stage import grpc_stage
from tests.dataplane.stage import post, run, until

BODY = b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}]}'


def test_a_call_of_another_service_counts(tmp_path: Path) -> None:
    """TF Serving's own service, asked for a client of V2: limited like any other, its slot free after each."""

    async def refuse(call: Call) -> None:
        await call.over()
        call.refuse(5, "no such model")

    async def never(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def scene() -> None:
        engine = await GrpcEngine(refuse).start()
        url = engine.url.replace("http://", "grpc://")
        text = (
            f"version: 1\nengines: {{it: {{protocol: tfserving, endpoints: ['{url}'], health: {{interval: 0}}}}}}\n"
            "routes: [{name: all, engine: it}]\n"
            "limits: [{name: few, requests_per_second: 0.001, burst: 3, concurrency: 1}]\n"
        )
        async with grpc_stage(text, tmp_path) as it:
            assert [(await it.ask(post(body=BODY))).status for _ in range(2)] == [404, 404]
            engine.script = never
            client = await it.client()
            await client.send(post(body=BODY))
            await until(lambda: len(engine.calls) == 3)
            refused = await it.ask(post(body=BODY))
            assert (refused.status, refused.reason) == (429, "rate_limited")
            assert b"limit 'few' is reached" in refused.body
            client.close()
        await engine.stop()

    run(scene())


class Limiter:
    """Has a request wait, until the test decides."""

    def __init__(self) -> None:
        self.asker: Any = None
        self.ended: list[str] = []

    def admit(self, limits: object, asker: Any, now: float) -> Any:
        self.asker = asker
        return SimpleNamespace(end=lambda: self.ended.append("waiting"))

    def leave(self, accounts: object, tokens: int, used: int) -> None:
        self.ended.append("grant")


def refuse(limiter: Limiter, asking: asyncio.Task[Any]) -> None:
    limiter.asker.refused(GatewayError(ErrorKind.RATE_LIMITED, "no"))


def admit(limiter: Limiter, asking: asyncio.Task[Any]) -> None:
    limiter.asker.admitted(Grant(limiter, [], None))  # type: ignore[arg-type]


def leave(limiter: Limiter, asking: asyncio.Task[Any]) -> None:
    asking.cancel()


def leave_as_it_comes(limiter: Limiter, asking: asyncio.Task[Any]) -> None:
    admit(limiter, asking)
    asking.cancel()


@pytest.mark.parametrize(
    "happens, told, ended",
    [
        (admit, Grant, []),
        (refuse, GatewayError, []),
        (leave, asyncio.CancelledError, ["waiting"]),
        (leave_as_it_comes, asyncio.CancelledError, ["waiting", "grant"]),
    ],
)
def test_who_waits_gets_it_or_leaves_nothing_behind(
    happens: Callable[[Limiter, asyncio.Task[Any]], None], told: type, ended: list[str]
) -> None:
    """Admitted, refused, or gone at any moment: a grant that nobody takes is given back."""

    async def scene() -> None:
        limiter = Limiter()
        lane: Any = SimpleNamespace(limits=(), target=SimpleNamespace(route="r"))
        asking = asyncio.ensure_future(Admission(None, lane, None).ask(limiter))  # type: ignore[arg-type]
        await until(lambda: limiter.asker is not None)
        happens(limiter, asking)
        [answer] = await asyncio.gather(asking, return_exceptions=True)
        assert isinstance(answer, told)
        assert limiter.ended == ended

    run(scene())
