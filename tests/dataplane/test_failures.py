"""Failing engines: what is retried, what is not, and which error the client gets."""

import asyncio
from pathlib import Path

import pytest

from gateway.dataplane.context.worker_counters import counters_of
from gateway.protocol.engine_load import Readiness
from tests.dataplane.stage import OK, Engine, ReceivedRequest, answer_ok, get, post, rules, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter


async def die(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    """Close without a reply."""
    raise ConnectionError


async def never(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
    """Send nothing until the gateway closes the connection."""
    await reader.read()
    raise ConnectionError


async def gone() -> Engine:
    """An engine that refuses connections."""
    engine = Engine()
    await engine.start()
    engine.stop()
    return engine


def test_a_refused_connection_is_tried_elsewhere(tmp_path: Path) -> None:
    """When an endpoint refuses the connection, any request goes to another endpoint, and the client gets no error."""

    async def scene() -> None:
        dead, alive = await gone(), Engine()
        await alive.start()
        async with stage(rules(dead, alive, options="balance: round_robin"), tmp_path) as it:
            for _ in range(10):
                assert (await it.ask(post())).status == 200
            assert len(alive.received) == 10
            assert it.errors() == {}
            assert sum(series.retries for series in it.plane.metrics.by_key.values()) >= 4
        alive.stop()

    run(scene())


def test_a_lost_request_names_where(tmp_path: Path) -> None:
    """An inference that has reached the engine is not sent twice: the client gets 502, with reason, route, engine and
    endpoint."""

    async def scene() -> None:
        engine, other = Engine(die), Engine()
        await engine.start()
        await other.start()
        async with stage(rules(engine), tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (502, "upstream_reset")
            assert reply.headers["x-pointsman-engine"] == "it"
            assert f"(route 'all', engine 'it', endpoint {engine.url})".encode() in reply.body
            assert len(engine.received) == 1
        engine.stop()
        other.stop()

    run(scene())


@pytest.mark.parametrize(
    "request_bytes, idempotent, tries",
    [
        (get("/v2/models/m"), "safe", 2),
        (post(), "safe", 1),
        (post(), "infer", 2),
        (post("/v2/models/m/generate"), "infer", 2),
        (post(body=b'{"parameters": {"sequence_id": 7}}'), "infer", 1),
        (post("/v2/models/m/infer", b"{}", "Content-Encoding: gzip"), "infer", 1),  # the body is not parsed
    ],
)
def test_only_what_may_run_twice_is_sent_twice(
    tmp_path: Path, request_bytes: bytes, idempotent: str, tries: int
) -> None:
    """A request that has reached an engine is retried only where that is safe: always for GET, for an inference if the
    rules allow it, never within a sequence."""

    async def scene() -> None:
        engines = [Engine(die), Engine(die)]
        for engine in engines:
            await engine.start()
        options = f"retry: {{idempotent: {idempotent}, attempts: 1}}"
        async with stage(rules(*engines, options=options), tmp_path) as it:
            assert (await it.ask(request_bytes)).status == 502
            assert sum(len(engine.received) for engine in engines) == tries
        for engine in engines:
            engine.stop()

    run(scene())


def test_a_long_body_is_not_kept_for_a_second_try(tmp_path: Path) -> None:
    """A body above --retry-body-bytes is streamed without being stored, so its request cannot be retried."""

    async def scene() -> None:
        engines = [Engine(die), Engine(die)]
        for engine in engines:
            await engine.start()
        text = rules(*engines, options="retry: {idempotent: infer}")
        async with stage(text, tmp_path, limits={"retry_body_bytes": 100}) as it:
            assert (await it.ask(post(body=bytes(101)))).status == 502
            assert sum(len(engine.received) for engine in engines) == 1
            assert (await it.ask(post(body=bytes(100)))).status == 502
            assert sum(len(engine.received) for engine in engines) == 4
        for engine in engines:
            engine.stop()

    run(scene())


def test_the_budget_bounds_retries(tmp_path: Path) -> None:
    """When all requests fail, the retry budget bounds the number of retries."""

    async def scene() -> None:
        engine = Engine(die)
        await engine.start()
        options = "retry: {idempotent: infer, budget: 0, budget_floor: 3}\n    breaker: {failures: 0}"
        async with stage(rules(engine, options=options), tmp_path) as it:
            for _ in range(10):
                assert (await it.ask(post())).status == 502
            assert len(engine.received) == 10 + 3
        engine.stop()

    run(scene())


def test_time_limits(tmp_path: Path) -> None:
    """A request that exceeds `timeout` gets 504 deadline; a try that exceeds `try_timeout` goes to another endpoint if
    the request may run twice."""

    async def scene() -> None:
        slow, fast = Engine(never), Engine()
        await slow.start()
        await fast.start()
        async with stage(rules(slow, options="timeout: 100ms"), tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (504, "deadline")
            assert b"did not answer within 0.1 s" in reply.body
            await until(lambda: slow.num_open == 0)  # the gateway closes the engine's connection
        options = "try_timeout: 50ms\n    balance: round_robin\n    retry: {idempotent: infer}"
        async with stage(rules(slow, fast, options=options), tmp_path) as it:
            for _ in range(4):
                assert (await it.ask(post())).status == 200
            assert len(fast.received) == 4
        slow.stop()
        fast.stop()

    run(scene())


def test_a_silent_stream_is_broken_off(tmp_path: Path) -> None:
    """A stream that is silent for longer than the engine's `idle_timeout` ends with an error; an active one may take
    longer than `timeout`."""

    async def stall(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"9\r\ndata: 1\n\n\r\n")
            await asyncio.sleep(0.05)
        await reader.read()
        raise ConnectionError

    async def scene() -> None:
        engine = Engine(stall)
        await engine.start()
        async with stage(rules(engine, options="idle_timeout: 100ms\n    timeout: 50ms"), tmp_path) as it:
            client = await it.client()
            await client.send(post("/v2/models/m/generate_stream"))
            await client.head()
            assert [await client.chunk() for _ in range(3)] == [b"data: 1\n\n"] * 3
            assert b"the engine sent nothing for 0.1 s" in await client.chunk()
            assert await client.at_end()
            await until(lambda: engine.num_open == 0)
        engine.stop()

    run(scene())


def test_the_breaker_leaves_a_failing_endpoint_out(tmp_path: Path) -> None:
    """After repeated failures an endpoint gets no requests until its breaker's pause is over and a trial request
    succeeds."""

    async def scene() -> None:
        bad, good = Engine(die), Engine()
        await bad.start()
        await good.start()
        options = "balance: round_robin\n    breaker: {failures: 2, open_for: 150ms}\n    retry: {attempts: 0}"
        async with stage(rules(bad, good, options=options), tmp_path) as it:
            statuses = [(await it.ask(post())).status for _ in range(10)]
            assert statuses.count(502) == 2
            assert counters_of(it.plane).breakers_open[("it", bad.url)]
            bad.script = answer_ok
            before = len(bad.received)
            await until(lambda: it.endpoints()[0].breaker.allows(asyncio.get_running_loop().time()))
            while len(bad.received) == before:
                assert (await it.ask(post())).status == 200
            assert not counters_of(it.plane).breakers_open[("it", bad.url)]
        bad.stop()
        good.stop()

    run(scene())


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_answers_do_not_open_the_breaker(tmp_path: Path, status: int) -> None:
    """An error status is a reply: it passes to the client, and the breaker stays closed."""

    async def answer(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 %d Whatever\r\nContent-Length: 2\r\n\r\n{}" % status)

    async def scene() -> None:
        engine = Engine(answer)
        await engine.start()
        async with stage(rules(engine, options="breaker: {failures: 2}"), tmp_path) as it:
            assert [(await it.ask(post())).status for _ in range(6)] == [status] * 6
            assert not any(counters_of(it.plane).breakers_open.values())
        engine.stop()

    run(scene())


def test_all_breakers_open_is_no_outage(tmp_path: Path) -> None:
    """When the breakers of all endpoints are open and no probe reports them down, requests are sent anyway, so service
    resumes as soon as the engines do."""

    async def scene() -> None:
        engines = [Engine(die), Engine(die)]
        for engine in engines:
            await engine.start()
        options = "breaker: {failures: 1, open_for: 1h}\n    retry: {attempts: 0}"
        async with stage(rules(*engines, options=options), tmp_path) as it:
            while not all(counters_of(it.plane).breakers_open.values()):
                await it.ask(post())
            for engine in engines:
                engine.script = answer_ok
            assert (await it.ask(post())).status == 200
        for engine in engines:
            engine.stop()

    run(scene())


def test_endpoints_that_are_down_get_nothing(tmp_path: Path) -> None:
    """An endpoint that probes report down gets no requests; if all are down, the client gets 503
    no_healthy_endpoint."""

    async def scene() -> None:
        one, other = Engine(), Engine()
        await one.start()
        await other.start()
        async with stage(rules(one, other), tmp_path) as it:
            it.plane.set_health({("it", one.url): Readiness.DOWN, ("it", other.url): Readiness.READY})
            for _ in range(6):
                assert (await it.ask(post())).status == 200
            assert (len(one.received), len(other.received)) == (0, 6)
            it.plane.set_health({("it", one.url): Readiness.DOWN, ("it", other.url): Readiness.DOWN})
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (503, "no_healthy_endpoint")
        one.stop()
        other.stop()

    run(scene())


def test_endpoints_that_are_not_ready_come_last(tmp_path: Path) -> None:
    """An unready endpoint gets requests only if no ready one is left: a Triton that is loading one model still serves
    the others."""

    async def scene() -> None:
        one, other = Engine(), Engine()
        await one.start()
        await other.start()
        async with stage(rules(one, other), tmp_path) as it:
            it.plane.set_health({("it", one.url): Readiness.UNREADY, ("it", other.url): Readiness.READY})
            for _ in range(6):
                assert (await it.ask(post())).status == 200
            assert (len(one.received), len(other.received)) == (0, 6)
            it.plane.set_health({("it", one.url): Readiness.UNREADY, ("it", other.url): Readiness.DOWN})
            assert (await it.ask(post())).status == 200
            assert len(one.received) == 1
        one.stop()
        other.stop()

    run(scene())


def test_a_full_line_is_told(tmp_path: Path) -> None:
    """Requests beyond the connection limit queue; beyond the queue's limit they get 503 overloaded at once."""

    async def scene() -> None:
        answer = asyncio.Event()

        async def slow(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
            await answer.wait()
            writer.write(OK)

        engine = Engine(slow)
        await engine.start()
        options = "connections: {max_connections: 1, max_pending: 1}"
        async with stage(rules(engine, options=options), tmp_path) as it:
            first, second = await it.client(), await it.client()
            await first.send(post())
            await until(lambda: engine.received)
            await second.send(post())
            await until(lambda: it.endpoints()[0].in_flight == 2)
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (503, "overloaded")
            answer.set()
            assert (await first.reply()).status == (await second.reply()).status == 200
            assert engine.num_connections == 1
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    ],
)
def test_a_malformed_reply_is_not_passed_on(tmp_path: Path, garbage: bytes) -> None:
    """A reply that is not HTTP, or is ambiguous, becomes 502 upstream_protocol."""

    async def talk(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(garbage)

    async def scene() -> None:
        engine = Engine(talk)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            reply = await it.ask(post())
            assert (reply.status, reply.reason) == (502, "upstream_protocol")
        engine.stop()

    run(scene())


def test_more_than_was_promised_is_cut_off(tmp_path: Path) -> None:
    """Bytes after the end of a reply reach no client, and the engine's connection is not reused."""

    async def too_much(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")

    async def scene() -> None:
        engine = Engine(too_much)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            client = await it.client()
            for _ in range(3):
                assert (await client.ask(post())).body == b'{"ok":true}'
            assert engine.num_connections == 3
        engine.stop()

    run(scene())


def test_interim_replies_are_swallowed(tmp_path: Path) -> None:
    """The gateway does not forward an engine's 1xx replies."""

    async def interim(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK)

    async def scene() -> None:
        engine = Engine(interim)
        await engine.start()
        async with stage(rules(engine), tmp_path) as it:
            assert (await it.ask(post())).status == 200
        engine.stop()

    run(scene())
