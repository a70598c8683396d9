"""Engines with `overload:`: who waits, who goes first, who is refused."""

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from gateway.config.engine_specs import EndpointSpec
from gateway.upstream import slow_uploads
from tests.dataplane.stage import OK, Client, Engine, Stage, load, post, rules, run, stage, until

ONE_AT_A_TIME = "overload: {concurrency: {min: 1, max: 1, initial: 1}, queue: {max_requests: %d, max_wait: %s}}"
CLASSES = """
classes:
  - {name: urgent, tenant: gold-*}
  - {name: normal}
  - {name: batch}
"""


class HeldEngine(Engine):
    """Answers when it is told to."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.allowed = asyncio.Semaphore(0)

    async def _answer(self, engine: object, received: object, reader: object, writer: asyncio.StreamWriter) -> None:
        await self.allowed.acquire()
        writer.write(OK)

    def named(self) -> list[str | None]:
        return [received.value("x-name") for received in self.received]


def overloaded(engine: Engine, max_requests: int = 100, max_wait: str = "30s", classes: str = CLASSES) -> str:
    return rules(engine, options=ONE_AT_A_TIME % (max_requests, max_wait)) + classes


def waiting(it: Stage) -> int:
    admission = it.plane.snapshot.engines["it"].overload
    assert admission is not None
    return sum(admission.waiting.values())


async def sent(it: Stage, name: str, *fields: str, body: bytes = b"{}") -> Client:
    client = await it.client()
    await client.send(post("/v2/models/m/infer", body, f"x-name: {name}", *fields))
    return client


async def queued(it: Stage, name: str, *fields: str, body: bytes = b"{}") -> Client:
    """A client whose request waits."""
    before = waiting(it)
    client = await sent(it, name, *fields, body=body)
    await until(lambda: waiting(it) > before)
    return client


async def busy(it: Stage, engine: HeldEngine) -> Client:
    """A client whose request the engine holds."""
    client = await sent(it, "first")
    await until(lambda: engine.received)
    return client


def test_requests_wait_for_the_engine_the_highest_class_first(tmp_path: Path) -> None:
    """Beyond the limit requests wait, and go on by class: by the header, by V2's `priority`, by the caller's tenant;
    none is in a higher class than its caller's."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            clients = [
                await busy(it, engine),
                await queued(it, "batch", "x-request-class: batch"),
                await queued(it, "third", body=b'{"parameters": {"priority": 3}}'),
                await queued(it, "normal"),
                await queued(it, "pretends", "x-request-class: urgent"),
                await queued(it, "gold", "x-tenant: gold-1"),
                await queued(it, "humble", "x-tenant: gold-1", body=b'{"parameters": {"priority": 2}}'),
            ]
            assert engine.named() == ["first"]
            for number in range(1, 8):
                engine.allowed.release()
                await until(lambda number=number: len(engine.received) == min(number + 1, 7))
            assert [(await client.reply()).status for client in clients] == [200] * 7
            order = engine.named()
            assert order[1] == "gold"
            assert set(order[2:5]) == {"normal", "pretends", "humble"}
            assert set(order[5:]) == {"batch", "third"}
        engine.stop()

    run(scene())


def test_a_full_queue_refuses_the_lowest_class(tmp_path: Path) -> None:
    """503 `overloaded` with `retry-after`: to a request of the lowest class in the queue when a higher one comes, and
    to one that is not more important than those that wait."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine, max_requests=1), tmp_path) as it:
            first = await busy(it, engine)
            batch = await queued(it, "batch", "x-request-class: batch")
            normal = await sent(it, "normal")
            displaced = await batch.reply()
            assert (displaced.status, displaced.reason) == (503, "overloaded")
            assert displaced.headers["retry-after"] == "1"
            assert b"of class 'batch' has given way to a more urgent one" in displaced.body
            refused = await it.ask(post("/v2/models/m/infer", b"{}", "x-request-class: batch"))
            assert (refused.status, refused.reason) == (503, "overloaded")
            assert b"1 requests wait already" in refused.body
            engine.allowed.release()
            engine.allowed.release()
            assert [(await client.reply()).status for client in (first, normal)] == [200, 200]
            assert it.plane.snapshot.engines["it"].overload.refused == {("batch", "displaced"): 1, ("batch", "full"): 1}
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("x-request-timeout: 50ms", b"{}"),
        ("x-stainless-read-timeout: 0.05", b"{}"),
        ("x-none: 1", b'{"parameters": {"timeout": 50000}}'),
    ],
)
def test_a_request_waits_as_long_as_its_client_does(tmp_path: Path, field: str, body: bytes) -> None:
    """A timeout in the head, or V2's `timeout` in microseconds, bounds the wait."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            first = await busy(it, engine)
            reply = await it.ask(post("/v2/models/m/infer", body, field))
            assert (reply.status, reply.reason) == (503, "overloaded")
            engine.allowed.release()
            assert (await first.reply()).status == 200
            assert engine.named() == ["first"]
        engine.stop()

    run(scene())


def test_a_rest_client_states_a_deadline(tmp_path: Path) -> None:
    """`x-request-timeout` ends a request that the engine has, too: 504."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            reply = await it.ask(post("/v2/models/m/infer", b"{}", "x-request-timeout: 0.05"))
            assert (reply.status, reply.reason) == (504, "deadline")
            engine.allowed.release()
        engine.stop()

    run(scene())


def test_nothing_remains_of_a_client_that_leaves_the_queue(tmp_path: Path) -> None:
    """Its place goes to the next one, and the engine never gets its request."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            first = await busy(it, engine)
            (await queued(it, "gone")).close()
            await until(lambda: not waiting(it))
            stays = await queued(it, "stays")
            engine.allowed.release()
            engine.allowed.release()
            assert [(await client.reply()).status for client in (first, stays)] == [200, 200]
            assert engine.named() == ["first", "stays"]
            assert it.plane.snapshot.engines["it"].overload.in_flight == 0
        engine.stop()

    run(scene())


def test_a_late_event_loop_sheds_the_lowest_class_first(tmp_path: Path) -> None:
    """Each tick that is too late takes one more class, each that is not gives one back."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            lag = it.plane.loop_lag
            lag.stop()
            lag.tick(1.5)
            batch = await it.ask(post("/v2/models/m/infer", b"{}", "x-request-class: batch"))
            assert (batch.status, batch.reason) == (503, "overloaded")
            assert (await it.ask(post())).status == 200
            lag.tick(1.5)
            assert (await it.ask(post())).status == 503
            assert (await it.ask(post("/v2/models/m/infer", b"{}", "x-tenant: gold-2"))).status == 200
            lag.tick(0.7)
            assert lag.num_shed == 2, "neither late nor early"
            lag.tick(0.1)
            lag.tick(0.1)
            assert (await it.ask(post("/v2/models/m/infer", b"{}", "x-request-class: batch"))).status == 200
        engine.stop()

    run(scene())


def test_a_reload_keeps_the_queue(tmp_path: Path) -> None:
    """Requests in the queue are served after other rules are in force."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path) as it:
            before = it.plane.snapshot.engines["it"].overload
            first = await busy(it, engine)
            second = await queued(it, "second")
            it.plane.use_rules(load(overloaded(engine) + "limits: [{name: few, concurrency: 9}]\n", tmp_path), 2)
            assert it.plane.snapshot.engines["it"].overload is before
            engine.allowed.release()
            engine.allowed.release()
            assert [(await client.reply()).status for client in (first, second)] == [200, 200]
        engine.stop()

    run(scene())


def test_limits_come_before_the_queue(tmp_path: Path) -> None:
    """A request that a limit refuses does not wait, and one that leaves the queue gives its slot back."""

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        text = overloaded(engine) + "limits: [{name: two, concurrency: 2}]\n"
        async with stage(text, tmp_path) as it:
            first = await busy(it, engine)
            second = await queued(it, "second")
            assert (await it.ask(post())).status == 429
            second.close()
            await until(lambda: not waiting(it))
            third = await queued(it, "third")
            engine.allowed.release()
            engine.allowed.release()
            assert [(await client.reply()).status for client in (first, third)] == [200, 200]
        engine.stop()

    run(scene())


def test_endpoints_that_join_have_room(tmp_path: Path) -> None:
    """Requests right after all endpoints of an engine have been replaced find room: they do not wait for a place that
    nobody gives back. Without any endpoint they are refused as by an engine that is down, not for their model."""

    async def scene() -> None:
        engines = [Engine(), Engine()]
        (tmp_path / "list.yaml").write_text("[]")
        text = "version: 1\nengines:\n  it:\n    endpoints: [{file: list.yaml}]\n    overload: {}\n"
        async with stage(text + "routes:\n  - {name: all, engine: it}\n", tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (503, "no_healthy_endpoint")
            admission = it.plane.snapshot.engines["it"].overload
            assert admission is not None
            for engine in engines:
                await engine.start()
                now = monotonic()
                admission.has_room(now)  # the sum of the limits is valid for a moment
                it.plane.set_endpoints({"it": (EndpointSpec(engine.url),)})
                admission._count_capacity(now)
                assert {reply.status for reply in await asyncio.gather(*[it.ask(post()) for _ in range(4)])} == {200}
        for engine in engines:
            engine.stop()

    run(scene())


def test_slow_uploads_take_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a long body slowly does not keep the engine from others: its request counts once it is
    whole."""
    monkeypatch.setattr(slow_uploads, "_MOMENT_SECONDS", 0.0)
    length = 100_000

    async def scene() -> None:
        engine = HeldEngine()
        await engine.start()
        async with stage(overloaded(engine), tmp_path, limits={"retry_body_bytes": 1024}) as it:
            slow = await it.client()
            head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: g\r\nContent-Length: {length}\r\n\r\n"
            await slow.send(head.encode() + b" " * 1000)
            await until(lambda: engine.num_open)
            engine.allowed.release()
            assert (await it.ask(post())).status == 200
            await slow.send(b" " * (length - 1000))
            admission = it.plane.snapshot.engines["it"].overload
            assert admission is not None
            await until(lambda: len(engine.received) == 2 and not admission.may_serve(monotonic()))
            later = await queued(it, "later")
            engine.allowed.release()
            assert (await slow.reply()).status == 200
            engine.allowed.release()
            assert (await later.reply()).status == 200
            await until(lambda: (admission.in_flight, waiting(it)) == (0, 0))
        engine.stop()

    run(scene())
