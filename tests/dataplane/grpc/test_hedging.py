"""Hedging of unary inferences over gRPC: a second endpoint gets what the first one does not answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.dataplane.grpc.peers import OPENING, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_stage, request
from tests.dataplane.stage import run, until

CANCEL = 8
RULES = """
version: 1
engines:
  it:
    endpoints: ['%s', '%s']
    retry: {idempotent: infer}
    breaker: {failures: 0}
    hedging: {delay: 20ms, budget: 100%%, burst: 100}
  spare: {endpoints: ['%s']}
routes: [{name: all, engine: it%s}]
"""


class Engines:
    """Two endpoints of one engine. The first call of all is held until `freed`."""

    def __init__(self) -> None:
        self.all = [GrpcEngine(self._answer) for _ in range(2)]
        self.freed = asyncio.Event()
        self.held: Call | None = None
        self.second: Call | None = None
        self.status = 0  # of the call that is held
        self.second_status: int | None = 0  # None: it is never answered

    async def _answer(self, call: Call) -> None:
        await call.over()
        status = self.second_status
        if self.held is None:
            self.held = call
            freed = asyncio.ensure_future(self.freed.wait())
            left = asyncio.ensure_future(call.when(lambda: call.was_reset is not None or call.peer.is_lost))
            await asyncio.wait([freed, left], return_when=asyncio.FIRST_COMPLETED)
            freed.cancel()
            left.cancel()
            await asyncio.gather(freed, left, return_exceptions=True)
            if call.was_reset is not None:
                return
            status = self.status
        else:
            self.second = call
            if status is None:
                await call.when(lambda: call.was_reset is not None or call.peer.is_lost)
                return
        if status:
            call.open([*OPENING, ("grpc-status", str(status))], ended=True)
            return
        call.open()
        await call.send(RESULT)
        call.end()

    def calls(self) -> list[Call]:
        return [call for engine in self.all for call in engine.calls]


def scene(tmp_path: Path, play: Any, fallback: str = "", **settings: Any) -> None:
    async def whole() -> None:
        engines, spare = Engines(), GrpcEngine()
        for engine in (*engines.all, spare):
            await engine.start()
        text = RULES % (engines.all[0].url, engines.all[1].url, spare.url, fallback)
        async with grpc_stage(text, tmp_path, **settings) as it:
            await play(it, await it.grpc(), engines)
            engines.freed.set()
        for engine in (*engines.all, spare):
            await engine.stop()

    run(whole())


def outcomes(it: GrpcStage) -> dict[str, int]:
    return {outcome: number for (_, outcome), number in it.plane.metrics.hedges.items()}


def good(call: Call, outcome: str) -> None:
    assert (call.status, call.messages, call.value("x-pointsman-hedge")) == (0, [RESULT], outcome)


# A hedge with a relay of its own, and with one that has fallbacks
RELAYS = pytest.mark.parametrize("fallback", ["", ", fallback: [spare]"], ids=["plain", "with fallbacks"])


@RELAYS
def test_a_slow_endpoint_loses_to_the_hedge(tmp_path: Path, fallback: str) -> None:
    """The second endpoint gets the same message, and the first call is reset with CANCEL; the log names the hedge."""

    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        sent = request()
        good(await client.ask(sent), "won")
        held = engines.held
        assert held is not None
        await held.when(lambda: held.was_reset is not None)
        assert held.was_reset == CANCEL
        assert [call.messages for call in engines.calls()] == [[sent], [sent]]
        assert outcomes(it) == {"won": 1}
        assert [line["hedge"] for line in it.log()] == ["won"]

    scene(tmp_path, play, fallback)


@RELAYS
def test_the_first_endpoint_wins_after_all(tmp_path: Path, fallback: str) -> None:
    """The hedge is reset with CANCEL."""

    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        engines.second_status = None
        asked = asyncio.ensure_future(client.ask(request()))
        await until(lambda: engines.second is not None)
        engines.freed.set()
        good(await asked, "lost")
        second = engines.second
        assert second is not None
        await second.when(lambda: second.was_reset is not None)
        assert second.was_reset == CANCEL
        assert outcomes(it) == {"lost": 1}

    scene(tmp_path, play, fallback)


@RELAYS
def test_a_hedge_that_fails_changes_nothing(tmp_path: Path, fallback: str) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        engines.second_status = 14
        asked = asyncio.ensure_future(client.ask(request()))
        await until(lambda: outcomes(it) == {"failed": 1})
        engines.freed.set()
        good(await asked, "failed")

    scene(tmp_path, play, fallback)


@RELAYS
def test_the_call_goes_on_with_the_hedge_where_the_first_attempt_fails(tmp_path: Path, fallback: str) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        go = asyncio.Event()

        async def answer(call: Call) -> None:
            if engines.held is not None:
                await go.wait()
            await engines._answer(call)

        for engine in engines.all:
            engine.script = answer
        engines.status = 14
        asked = asyncio.ensure_future(client.ask(request()))
        await until(lambda: len(engines.calls()) == 2)
        engines.freed.set()
        await until(lambda: outcomes(it) == {"won": 1})
        go.set()
        good(await asked, "won")
        assert len(engines.calls()) == 2

    scene(tmp_path, play, fallback)


@pytest.mark.parametrize("name", ["sequence_id", "shared_memory_region"])
def test_what_may_do_harm_twice_is_not_hedged(tmp_path: Path, name: str) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        asked = asyncio.ensure_future(client.ask(request(raw_input_contents=[name.encode()])))
        await until(lambda: it.plane.metrics.hedges_suppressed["it", "request"] == 1)
        engines.freed.set()
        assert (await asked).value("x-pointsman-hedge") is None
        assert len(engines.calls()) == 1

    scene(tmp_path, play)


def test_nothing_remains_of_a_call_that_its_client_cancels(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engines: Engines) -> None:
        engines.second_status = None
        call = client.call()
        await call.send(request(), ended=True)
        await until(lambda: engines.second is not None)
        call.reset()
        for each in engines.calls():
            await each.when(lambda each=each: each.was_reset is not None)

    scene(tmp_path, play)
