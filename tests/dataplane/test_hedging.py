"""Hedging of REST inferences: a second endpoint gets what the first one does not answer."""

import asyncio
import gc
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gateway.dataplane.attempts.hedged_attempts import HedgedAttempts
from gateway.observability.access_log import AccessLog
from gateway.protocol.engine_load import Load
from tests.dataplane.stage import OK, Client, Engine, ReceivedRequest, Stage, get, load, post, rules, run, stage, until

HEDGING = "hedging: {delay: 20ms, burst: 100, budget: 100%}"
IDEMPOTENT = "retry: {idempotent: infer}"
Play = Callable[[Stage, "Engines"], Awaitable[None]]


class Engines:
    """Two or more engines. The first request of all is held until `freed`, and gets `late`; the others get `reply`."""

    def __init__(self, number: int = 2) -> None:
        self.all = [Engine(self._answer) for _ in range(number)]
        self.freed = asyncio.Event()
        self.held: Engine | None = None
        self.was_left = asyncio.Event()  # by the gateway, while it was held
        self.late: bytes | None = OK.replace(b"true}", b"late}")  # None: it closes the connection
        self.reply: bytes | None = OK
        self.holds = True

    async def _answer(
        self, engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        reply = self.reply
        if self.holds and self.held is None:
            self.held = engine
            left = asyncio.ensure_future(reader.read(1))
            freed = asyncio.ensure_future(self.freed.wait())
            await asyncio.wait([left, freed], return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                self.was_left.set()
            left.cancel()
            freed.cancel()
            await asyncio.gather(left, freed, return_exceptions=True)
            reply = self.late
        if reply is None:
            raise ConnectionError
        writer.write(reply)

    def received(self) -> list[ReceivedRequest]:
        return [received for engine in self.all for received in engine.received]

    @property
    def free(self) -> Engine:
        return next(engine for engine in self.all if engine is not self.held)


def scene(
    tmp_path: Path, play: Play, options: str = f"{HEDGING}\n    {IDEMPOTENT}", more: str = "", **settings: Any
) -> None:
    async def whole() -> None:
        engines = Engines()
        for engine in engines.all:
            await engine.start()
        async with stage(rules(*engines.all, options=options) + more, tmp_path, **settings) as it:
            await play(it, engines)
            engines.freed.set()
            for engine in engines.all:
                engine.stop()

    run(whole())


def outcomes(it: Stage) -> dict[str, int]:
    return {outcome: number for (_, outcome), number in it.plane.metrics.hedges.items()}


def suppressed(it: Stage) -> dict[str, int]:
    return {reason: number for (_, reason), number in it.plane.metrics.hedges_suppressed.items()}


def answered(it: Stage) -> int:
    return sum(sum(series.statuses.values()) for series in it.plane.metrics.by_key.values())


def test_a_slow_endpoint_loses_to_the_hedge(tmp_path: Path) -> None:
    """The second endpoint gets the same request, its reply is the client's and says so, and the first connection is
    closed; the request counts once."""

    async def play(it: Stage, engines: Engines) -> None:
        log = io.StringIO()
        it.plane.request_log.access_log = AccessLog("json", log)
        reply = await it.ask(post(body=b'{"inputs": []}'))
        assert (reply.status, reply.body, reply.headers["x-pointsman-hedge"]) == (200, b'{"ok":true}', "won")
        await engines.was_left.wait()
        first, second = engines.received()
        assert (first.body, first.line) == (second.body, second.line)
        assert first.value("x-request-id") == second.value("x-request-id")
        assert outcomes(it) == {"won": 1}
        assert answered(it) == 1
        it.plane.request_log.access_log.flush()
        entry = json.loads(log.getvalue())
        assert (entry["hedge"], entry["endpoint"], entry["status"]) == ("won", engines.free.url, 200)
        assert (await it.ask(get("/v2/models/m"))).headers.get("x-pointsman-hedge") is None

    scene(tmp_path, play)


def test_the_first_endpoint_wins_after_all(tmp_path: Path) -> None:
    """The hedge is cancelled: its connection is closed."""

    async def play(it: Stage, engines: Engines) -> None:
        engines.late = OK
        second_has_it = asyncio.Event()

        async def never(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            if engines.held is None:
                await engines._answer(engine, received, reader, writer)
                return
            second_has_it.set()
            await reader.read()
            raise ConnectionError

        for engine in engines.all:
            engine.script = never
        client = await it.client()
        await client.send(post())
        await second_has_it.wait()
        engines.freed.set()
        reply = await client.reply()
        assert (reply.status, reply.headers["x-pointsman-hedge"]) == (200, "lost")
        assert outcomes(it) == {"lost": 1}
        await until(lambda: engines.free.num_open == 0)

    scene(tmp_path, play)


ERRORS = {
    "closed": None,
    "503": b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
    "500, not whole": b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nOops",
}


@pytest.mark.parametrize("late", ERRORS.values(), ids=ERRORS)
def test_the_request_goes_on_with_the_hedge_where_the_first_attempt_fails(tmp_path: Path, late: bytes | None) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        engines.late = late
        go = asyncio.Event()

        async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            if engines.held is not None:
                await go.wait()
            await engines._answer(engine, received, reader, writer)

        for engine in engines.all:
            engine.script = answer
        client = await it.client()
        await client.send(post())
        await until(lambda: len(engines.received()) == 2)
        engines.freed.set()
        await until(lambda: outcomes(it) == {"won": 1})
        go.set()
        reply = await client.reply()
        assert (reply.status, reply.headers["x-pointsman-hedge"]) == (200, "won")
        assert len(engines.received()) == 2, "it is not retried as well"

    scene(tmp_path, play)


@pytest.mark.parametrize("bad", ERRORS.values(), ids=ERRORS)
def test_a_hedge_that_fails_changes_nothing(tmp_path: Path, bad: bytes | None) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        engines.reply, engines.late = bad, OK
        client = await it.client()
        await client.send(post())
        await until(lambda: outcomes(it) == {"failed": 1})
        engines.freed.set()
        reply = await client.reply()
        assert (reply.status, reply.headers["x-pointsman-hedge"]) == (200, "failed")

    scene(tmp_path, play)


def test_a_hedged_request_is_freed_at_once(tmp_path: Path) -> None:
    """It is in no circle of references, which would wait for the collector."""

    async def play(it: Stage, engines: Engines) -> None:
        gc.collect()
        gc.disable()
        try:
            for late in (OK, None):
                engines.late, engines.held = late, None
                assert (await it.ask(post())).headers["x-pointsman-hedge"] == "won"
            client = await it.client()
            engines.reply, engines.held = b"HTTP/1.1 200 OK\r\n", None
            await client.send(post())
            await until(lambda: outcomes(it) == {"won": 2} and len(engines.received()) == 6)
            engines.late = OK
            engines.freed.set()
            assert (await client.reply()).headers["x-pointsman-hedge"] == "lost"
            await until(lambda: not any(type(each) is HedgedAttempts for each in gc.get_objects()))
        finally:
            gc.enable()

    scene(tmp_path, play)


def test_nothing_remains_of_a_client_that_leaves(tmp_path: Path) -> None:
    """Both endpoints are left."""

    async def play(it: Stage, engines: Engines) -> None:
        engines.reply = b"HTTP/1.1 200 OK\r\n"  # and no more
        client = await it.client()
        await client.send(post())
        await until(lambda: len(engines.received()) == 2)
        client.close()
        await engines.was_left.wait()
        await until(lambda: engines.free.num_open == 0)
        assert outcomes(it) == {"lost": 1}

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(body=b'{"parameters": {"sequence_id": 7}}'),
        post(body=b'{"inputs": [{"parameters": {"shared_memory_region": "r"}}]}'),
        post("/v2/models/m/infer", b"x" * 100, "content-encoding: gzip"),
    ],
    ids=["sequence", "shared memory", "unreadable"],
)
def test_what_may_do_harm_twice_is_not_hedged(tmp_path: Path, request_bytes: bytes) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        client = await it.client()
        await client.send(request_bytes)
        await until(lambda: suppressed(it) == {"request": 1})
        engines.freed.set()
        reply = await client.reply()
        assert (reply.status, reply.headers.get("x-pointsman-hedge")) == (200, None)
        assert len(engines.received()) == 1

    scene(tmp_path, play)


def test_the_budget_bounds_the_hedges(tmp_path: Path) -> None:
    """One at first; then one for each 20 requests."""

    async def play(it: Stage, engines: Engines) -> None:
        assert (await it.ask(post())).headers["x-pointsman-hedge"] == "won"
        engines.held = None
        client = await it.client()
        await client.send(post())
        await until(lambda: suppressed(it) == {"budget": 1})
        engines.freed.set()
        assert (await client.reply()).body == b'{"ok":late}'
        assert outcomes(it) == {"won": 1}

    scene(tmp_path, play, f"hedging: {{delay: 20ms}}\n    {IDEMPOTENT}")


def test_the_delay_is_the_models_percentile_once_it_is_known(tmp_path: Path) -> None:
    """Forty replies come first."""

    async def play(it: Stage, engines: Engines) -> None:
        engines.holds = False
        client = await it.client()
        for _ in range(40):
            assert (await client.ask(post())).status == 200
        policy = it.plane.snapshot.engines["it"].hedging
        assert policy is not None and policy.delay(policy.latencies(("m", ""), 0.0)) > 0
        engines.holds = True
        assert (await client.ask(post())).headers["x-pointsman-hedge"] == "won"

    scene(tmp_path, play, f"hedging: {{min_delay: 1ms}}\n    {IDEMPOTENT}")


def test_an_engine_without_room_gets_no_hedge(tmp_path: Path) -> None:
    """Where as many requests are under way as `overload:` allows, or where the other endpoint reports that requests
    wait there."""

    async def play(it: Stage, engines: Engines) -> None:
        client = await it.client()
        await client.send(post())
        await until(lambda: suppressed(it) == {"overloaded": 1})
        engines.freed.set()
        assert (await client.reply()).status == 200

    concurrency = "overload: {concurrency: {min: 1, max: 1, initial: 1}}"
    # Nothing is known of the endpoints before the first request: the sum of their limits is two
    scene(tmp_path, _busy(play), f"{HEDGING}\n    {IDEMPOTENT}\n    {concurrency}")

    async def waits_there(it: Stage, engines: Engines) -> None:
        for endpoint in it.endpoints():
            endpoint.observe_load(Load(running=4, waiting=2))
        await play(it, engines)

    scene(tmp_path, waits_there)


class _Whole:
    """A request whose body is there."""

    is_uploading = False


def _busy(play: Play) -> Play:
    """Play while another request, which is no inference that is hedged, has the second place."""

    async def busy(it: Stage, engines: Engines) -> None:
        admission = it.plane.snapshot.engines["it"].overload
        assert admission is not None
        other, now = _Whole(), monotonic()
        admission.enter(other, now)
        await play(it, engines)
        admission.leave(other, now, monotonic())

    return busy


def test_a_hedge_takes_a_place_under_overload_protection_and_gives_it_back(tmp_path: Path) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        admission = it.plane.snapshot.engines["it"].overload
        assert admission is not None
        engines.reply = b"HTTP/1.1 200 OK\r\n"
        client = await it.client()
        await client.send(post())
        await until(lambda: len(engines.received()) == 2)
        assert admission.in_flight == 2
        engines.freed.set()
        assert (await client.reply()).status == 200
        assert admission.in_flight == 0

    scene(tmp_path, play, f"{HEDGING}\n    {IDEMPOTENT}\n    overload: {{}}")


def test_limits_count_a_hedged_request_once(tmp_path: Path) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        assert (await it.ask(post())).headers["x-pointsman-hedge"] == "won"
        assert next(iter(it.plane.limiter.limits)).counts.admitted == 1

    scene(tmp_path, play, more="limits: [{name: few, concurrency: 1}]\n")


def test_there_is_no_hedge_without_another_endpoint(tmp_path: Path) -> None:
    async def play(it: Stage, engines: Engines) -> None:
        it.endpoints()[1].is_draining = True
        client = await it.client()
        await client.send(post())
        await until(lambda: suppressed(it) == {"endpoint": 1})
        engines.freed.set()
        assert (await client.reply()).status == 200

    scene(tmp_path, play)


def test_what_is_no_inference_and_what_is_not_declared_is_not_hedged(tmp_path: Path) -> None:
    """Requests of another kind go the direct way, and other rules switch hedging off and on."""

    async def play(it: Stage, engines: Engines) -> None:
        engines.holds = False
        assert (await it.ask(get("/v2/models/m"))).status == 200
        assert not it.plane.snapshot.engines["it"].hedging._latencies
        plain = rules(*engines.all, options=IDEMPOTENT)
        it.plane.use_rules(load(plain, tmp_path), 2)
        assert (await it.ask(post())).status == 200
        assert it.plane.snapshot.engines["it"].hedging is None
        engines.holds = True
        it.plane.use_rules(load(rules(*engines.all, options=f"{HEDGING}\n    {IDEMPOTENT}"), tmp_path), 3)
        assert (await it.ask(post())).headers["x-pointsman-hedge"] == "won"

    scene(tmp_path, play)


def test_a_deadline_ends_both(tmp_path: Path) -> None:
    """`timeout` is for the request: a hedge gets no more time."""

    async def play(it: Stage, engines: Engines) -> None:
        engines.reply = b"HTTP/1.1 200 OK\r\n"
        reply = await it.ask(post())
        assert (reply.status, reply.reason) == (504, "deadline")
        await engines.was_left.wait()
        await until(lambda: engines.free.num_open == 0)

    scene(tmp_path, play, f"{HEDGING}\n    {IDEMPOTENT}\n    timeout: 200ms")


def test_a_try_timeout_leaves_the_hedge(tmp_path: Path) -> None:
    """The first attempt's time is over: the hedge has a time of its own."""

    async def play(it: Stage, engines: Engines) -> None:
        go = asyncio.Event()

        async def answer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
            if engines.held is not None:
                await go.wait()
            await engines._answer(engine, received, reader, writer)

        for engine in engines.all:
            engine.script = answer
        client: Client = await it.client()
        await client.send(post())
        await engines.was_left.wait()
        assert outcomes(it) == {"won": 1}
        go.set()
        assert (await client.reply()).status in (200, 504)

    scene(tmp_path, play, f"{HEDGING}\n    {IDEMPOTENT}\n    try_timeout: 1s")
