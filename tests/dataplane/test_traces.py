"""Traces of REST requests: which are recorded, what their spans say, and what engines get."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, time
from typing import Any

import pytest

from gateway.config.tracing import Tracing
from gateway.observability.spans import RequestSpan, decode_batch
from gateway.protocol.trace_context import read_traceparent
from tests.dataplane.generating import CHAT, DONE, LAST, OPENAI, STOP, STREAM, USAGE, asked, chunk, token, writes
from tests.dataplane.stage import OK, Engine, ReceivedRequest, Stage, answer_ok, get, post, rules, run, stage, until

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED, UNSAMPLED = f"traceparent: 00-{TRACE}-{CALLER}-01", f"traceparent: 00-{TRACE}-{CALLER}-00"
ALL = Tracing("http://unused", share=1.0, rate=10_000)
NONE = Tracing("http://unused", share=0.0, slow=0.0)


class Recorded:
    """What a data plane has recorded."""

    def __init__(self, it: Stage) -> None:
        assert it.plane.spans is not None
        self._spans = it.plane.spans
        self._spans.send = self._take
        self._requests: list[RequestSpan] = []
        self.dropped = 0

    def _take(self, encoded: bytes, dropped: int) -> None:
        batch = decode_batch(encoded, dropped, time() - monotonic())
        self._requests += batch.requests
        self.dropped += batch.dropped

    def take(self) -> list[RequestSpan]:
        self._spans.flush()
        taken, self._requests = self._requests, []
        return taken

    def one(self) -> RequestSpan:
        (only,) = self.take()
        return only


def play(tmp_path: Path, scene: Any, *engines: Engine, tracing: Tracing = ALL, **options: Any) -> None:
    async def whole() -> None:
        for engine in engines:
            await engine.start()
        text = rules(*engines, options=options.pop("engine", ""), routes=options.pop("routes", ""))
        async with stage(text, tmp_path, tracing=tracing, **options) as it:
            await scene(it, Recorded(it))
        for engine in engines:
            engine.stop()

    run(whole())


async def once_unavailable(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    """Break the first request off, and answer the others."""
    if len(engine.received) == 1:
        writer.transport.abort()
    else:
        writer.write(OK)


def test_engines_are_called_by_the_gateways_span(tmp_path: Path) -> None:
    """A sampled request is a span under its caller's; the engine gets the id of the attempt's span as its caller, and
    each other field as it came."""
    engine = Engine()

    async def scene(it: Stage, recorded: Recorded) -> None:
        reply = await it.ask(post("/v2/models/m/infer", b"{}", SAMPLED, "tracestate: a=1", "x-own: 00-1"))
        assert reply.status == 200
        span, received = recorded.one(), engine.received[-1]
        assert (span.trace_id, span.parent_id, span.why) == (TRACE.encode(), CALLER.encode(), "head")
        (attempt,) = span.attempts
        context = read_traceparent((received.value("traceparent") or "").encode())
        assert context == (TRACE.encode(), attempt.span_id, True)
        assert (received.value("tracestate"), received.value("x-own")) == ("a=1", "00-1")
        assert (span.route, span.engine, span.model, span.status) == ("all", "it", "m", 200)
        assert (span.method, span.target, span.operation) == ("POST", "/v2/models/m/infer", "infer")
        assert (attempt.endpoint, attempt.status, attempt.failure) == (engine.url, 200, "")
        assert span.started_at <= attempt.begun_at <= attempt.sent_at <= attempt.first_byte_at <= span.ended_at

    play(tmp_path, scene, engine)


def test_requests_without_a_context_begin_a_trace(tmp_path: Path) -> None:
    """Without a trace context, or with an invalid one, a trace begins at the gateway, and the engine gets one field."""
    engine = Engine()

    async def scene(it: Stage, recorded: Recorded) -> None:
        for number, field in enumerate(("x-none: 1", "traceparent: 00-0-1-01", f"{SAMPLED}-more", "TraceParent: ff")):
            await it.ask(post("/v2/models/m/infer", b"{}", field))
            span = recorded.one()
            assert span.parent_id == b""
            value = engine.received[number].value("traceparent") or ""
            assert value == f"00-{span.trace_id.decode()}-{span.attempts[0].span_id.decode()}-01"

    play(tmp_path, scene, engine)


@pytest.mark.parametrize("tracing", [None, NONE])
def test_what_is_not_sampled_passes_unchanged(tmp_path: Path, tracing: Tracing) -> None:
    """Without tracing, and for requests that are not sampled, the client's field goes on as it came, and nothing is
    recorded."""
    engine = Engine()

    async def whole() -> None:
        await engine.start()
        async with stage(rules(engine), tmp_path, tracing=tracing) as it:
            field = UNSAMPLED if tracing is not None else SAMPLED
            await it.ask(post("/v2/models/m/infer", b"{}", field))
            assert engine.received[-1].value("traceparent") == field.partition(": ")[2]
            await it.ask(post())
            assert engine.received[-1].value("traceparent") is None
            if tracing is not None:
                assert Recorded(it).take() == []
        engine.stop()

    run(whole())


def test_callers_decide_unless_told_otherwise(tmp_path: Path) -> None:
    """By default a caller's flag decides; a sampler that ignores it decides by the trace's id, the same in each
    process."""
    engine = Engine()

    async def scene(it: Stage, recorded: Recorded) -> None:
        await it.ask(post("/v2/models/m/infer", b"{}", SAMPLED))
        assert recorded.one().trace_id == TRACE.encode()

    play(tmp_path, scene, engine, tracing=NONE)

    async def by_id(it: Stage, recorded: Recorded) -> None:
        for digits, is_sampled in (("2", True), ("f", False)):
            trace = f"{TRACE[:16]}{digits}{TRACE[17:]}"
            for flag in ("00", "01"):
                await it.ask(post("/v2/models/m/infer", b"{}", f"traceparent: 00-{trace}-{CALLER}-{flag}"))
                assert len(recorded.take()) == is_sampled

    tracing = Tracing("http://unused", share=0.5, follows_caller=False, slow=0.0)
    play(tmp_path, by_id, Engine(), tracing=tracing)


def test_a_retry_is_a_span_of_its_own(tmp_path: Path) -> None:
    """A request that needs a second attempt has two spans of engines, the first with its failure; it is recorded though
    nobody has sampled it."""
    engine = Engine(once_unavailable)

    async def scene(it: Stage, recorded: Recorded) -> None:
        assert (await it.ask(post())).status == 200
        span = recorded.one()
        assert (span.why, span.status) == ("retry", 200)
        first, second = span.attempts
        assert (first.failure, second.failure, second.status) == ("upstream_reset", "", 200)
        assert first.ended_at <= second.ended_at

    play(tmp_path, scene, engine, tracing=NONE, engine="retry: {idempotent: infer}")


def test_failures_and_slow_requests_are_recorded(tmp_path: Path) -> None:
    """Failures of engines and of the gateway are recorded without a sample, and so is what takes long; a client's own
    error is not."""

    async def fails(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")

    async def scene(it: Stage, recorded: Recorded) -> None:
        await it.ask(post())
        span = recorded.one()
        assert (span.why, span.status, span.attempts[0].status) == ("error", 500, 500)
        assert (await it.ask(post("/nothing"))).status == 404
        assert recorded.take() == []

    play(tmp_path, scene, Engine(fails), tracing=NONE)

    async def slow(it: Stage, recorded: Recorded) -> None:
        assert (await it.ask(post())).status == 200
        assert recorded.one().why == "slow"

    play(tmp_path, slow, Engine(), tracing=Tracing("http://unused", share=0.0, slow=1e-9))


def test_a_generation_has_its_tokens(tmp_path: Path) -> None:
    """The span of a streamed generation has its tokens, the time of the first and why it has ended."""
    pieces = (STREAM, *(chunk(each) for each in (token("a"), token("b"), STOP, USAGE, DONE)), LAST)

    async def scene(it: Stage, recorded: Recorded) -> None:
        assert (await it.ask(post(CHAT, asked(CHAT)))).status == 200
        span = recorded.one()
        assert (span.prompt_tokens, span.completion_tokens, span.finish_reason) == (3, 2, "stop")
        assert span.attempts[0].sent_at <= span.first_token_at <= span.ended_at
        assert (span.protocol, span.operation, span.model, span.provider) == ("openai", "chat", "m", "openai")

    play(tmp_path, scene, Engine(writes(*pieces)), engine=OPENAI)


def test_translated_requests_are_one_span(tmp_path: Path) -> None:
    """A client and an engine of different APIs have one trace: the engine's caller is the attempt's span."""
    engine = Engine(writes(STREAM, *(chunk(each) for each in (token("a"), STOP, USAGE, DONE)), LAST))

    async def scene(it: Stage, recorded: Recorded) -> None:
        body = b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": true}'
        assert (await it.ask(post("/v1/messages", body, SAMPLED))).status == 200
        span = recorded.one()
        assert (engine.received[0].value("traceparent") or "")[36:52] == span.attempts[0].span_id.decode()
        assert (span.trace_id, span.completion_tokens) == (TRACE.encode(), 2)

    play(tmp_path, scene, engine, engine=OPENAI)


def test_a_fallback_is_of_the_same_trace(tmp_path: Path) -> None:
    """A request that another engine answers is one span, with the attempts at both engines, whether it was sampled or
    not."""

    async def fails(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

    async def whole(tracing: Tracing, *fields: str) -> RequestSpan:
        first, second = Engine(fails), Engine(answer_ok)
        await first.start()
        await second.start()
        text = (
            f"version: 1\nengines:\n  first: {{endpoints: ['{first.url}'], retry: {{attempts: 0}}}}\n"
            f"  second: {{endpoints: ['{second.url}']}}\n"
            "routes:\n  - {name: all, engine: first, fallback: [second]}\n"
        )
        async with stage(text, tmp_path, tracing=tracing) as it:
            recorded = Recorded(it)
            assert (await it.ask(post("/v2/models/m/infer", b"{}", *fields))).status == 200
            span = recorded.one()
        first.stop()
        second.stop()
        assert [(attempt.engine, attempt.status) for attempt in span.attempts] == [("first", 503), ("second", 200)]
        assert (span.status, span.fallback, span.engine) == (200, "overloaded", "second")
        return span

    async def both() -> None:
        span = await whole(ALL, SAMPLED)
        assert (span.trace_id, span.parent_id, span.why) == (TRACE.encode(), CALLER.encode(), "head")
        assert (await whole(NONE)).why == "retry"

    run(both())


def test_calls_of_the_fleet_are_traced(tmp_path: Path) -> None:
    """What goes to all endpoints has one span for each of them, whose id its endpoint gets as its caller's."""

    async def statistics(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{"model_stats":[]}')

    engines = Engine(statistics), Engine(statistics)

    async def scene(it: Stage, recorded: Recorded) -> None:
        assert (await it.ask(get("/v2/models/stats", SAMPLED))).status == 200
        span = recorded.one()
        assert {attempt.endpoint for attempt in span.attempts} == {engine.url for engine in engines}
        for engine in engines:
            (attempt,) = (each for each in span.attempts if each.endpoint == engine.url)
            expected = f"00-{TRACE}-{attempt.span_id.decode()}-01"
            assert engine.received[0].value("traceparent") == expected

    play(tmp_path, scene, *engines)


def test_what_is_too_much_is_dropped_and_counted(tmp_path: Path) -> None:
    """A worker records at most so many requests a second."""

    async def scene(it: Stage, recorded: Recorded) -> None:
        client = await it.client()
        for _ in range(5):
            assert (await client.ask(get("/v2/health/live"))).status == 200
        client.close()
        assert len(recorded.take()) + recorded.dropped == 5
        assert recorded.dropped >= 1

    play(tmp_path, scene, Engine(), tracing=Tracing("http://unused", share=1.0, rate=2))


def test_waits_for_limits_are_told(tmp_path: Path) -> None:
    """A span has the time that limits have held its request."""
    routes = "  - {name: all, engine: it}\nlimits: [{name: narrow, concurrency: 1, max_wait: 60s}]\n"
    queued: list[bool] = []

    async def waits(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
        if len(engine.received) == 1:
            await until(lambda: queued)
        writer.write(OK)

    engine = Engine(waits)

    async def scene(it: Stage, recorded: Recorded) -> None:
        first, second = await it.client(), await it.client()
        await first.send(post())
        await until(lambda: engine.received)
        await second.send(post())
        (limit,) = it.plane.limiter.limits
        await until(lambda: any(account.num_queued for account in limit.accounts.values()))
        queued.append(True)
        await first.reply()
        await second.reply()
        spans = sorted(recorded.take(), key=lambda span: span.waited)
        assert spans[0].waited == 0 < spans[1].waited

    play(tmp_path, scene, engine, routes=routes)
