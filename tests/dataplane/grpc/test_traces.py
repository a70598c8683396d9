"""Traces of gRPC calls in one data plane: retries, fallbacks, streams, what is not sampled."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, time

import pytest

from gateway.config.tracing import Tracing
from gateway.observability.spans import RequestSpan, decode_batch
from tests.dataplane.grpc.peers import OPENING, STREAM, Call, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_stage, many, request, response
from tests.dataplane.stage import run, until

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ROUTE = "  - {name: all, engine: first, fallback: [second]}\n"
SAMPLED = ("traceparent", f"00-{TRACE}-{CALLER}-01")
ALL = Tracing("http://unused", share=1.0, rate=10_000)
NONE = Tracing("http://unused", share=0.0, slow=0.0)


async def answer(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(RESULT)
    call.end()


async def refuse(call: Call) -> None:
    await call.over()
    call.open([*OPENING, ("grpc-status", "14"), ("grpc-message", "no")], ended=True)


async def stream_answer(call: Call) -> None:
    await call.message()
    call.open()
    await call.send(response())
    await call.over()
    call.end()


def recorded(it: GrpcStage) -> list[RequestSpan]:
    """What the data plane has recorded since the last time."""
    spans, found = it.plane.spans, list[RequestSpan]()
    assert spans is not None
    spans.send = lambda encoded, dropped: found.extend(decode_batch(encoded, dropped, time() - monotonic()).requests)
    spans.flush()
    return found


def caller_of(call: Call) -> str:
    return (call.value("traceparent") or "")[36:52]


@pytest.mark.parametrize("tracing", [ALL, NONE])
def test_a_fallback_is_of_the_same_trace(tmp_path: Path, tracing: Tracing) -> None:
    """A call that another engine answers is one span with an attempt at each engine, sampled when it begins or not."""

    async def whole() -> None:
        first, second = await GrpcEngine(refuse).start(), await GrpcEngine(answer).start()
        text = many({"first": (first, "breaker: {failures: 0}"), "second": second}, ROUTE)
        async with grpc_stage(text, tmp_path, tracing=tracing) as it:
            client = await it.grpc()
            assert (await client.ask(request(), metadata=[SAMPLED] if tracing is ALL else [])).status == 0
            (span,) = recorded(it)
            refused, answered = span.attempts
            assert (refused.engine, answered.engine) == ("first", "second")
            assert (span.engine, span.fallback) == ("second", "overloaded")
            assert (span.code, span.status, span.protocol, span.operation) == (0, 200, "grpc", "infer")
            if tracing is ALL:
                assert (span.trace_id.decode(), span.parent_id.decode(), span.why) == (TRACE, CALLER, "head")
                assert caller_of(first.calls[0]) == refused.span_id.decode()
                assert caller_of(second.calls[0]) == answered.span_id.decode()
            else:
                assert span.why == "retry"
                assert second.calls[0].value("traceparent") is None
        await first.stop()
        await second.stop()

    run(whole())


def test_a_stream_is_one_span(tmp_path: Path) -> None:
    """A stream to two engines is one span with an attempt at each; each engine gets the id of its own."""

    async def whole() -> None:
        one, two = await GrpcEngine(stream_answer).start(), await GrpcEngine(stream_answer).start()
        async with grpc_stage(many({"one": one, "two": two}), tmp_path, tracing=ALL) as it:
            client = await it.grpc()
            call = client.call(STREAM, SAMPLED)
            for model in ("one", "two"):
                await call.send(request(model))
            await until(lambda: len(call.messages) == 2)
            call.end()
            await call.over()
            assert call.status == 0, call
            await until(lambda: it.plane.spans is not None and it.plane.spans._records)
            (span,) = recorded(it)
            assert (span.trace_id.decode(), span.parent_id.decode(), span.target) == (TRACE, CALLER, STREAM)
            assert {attempt.engine for attempt in span.attempts} == {"one", "two"}
            for engine in (one, two):
                (attempt,) = (each for each in span.attempts if each.endpoint == engine.url)
                (received,) = (
                    each for each in engine.calls if each.value(":path") == STREAM
                )  # beside its model's config
                assert caller_of(received) == attempt.span_id.decode()
                assert attempt.sent_at <= attempt.first_byte_at <= attempt.ended_at
        await one.stop()
        await two.stop()

    run(whole())


def test_what_is_not_sampled_passes_unchanged(tmp_path: Path) -> None:
    """A call that is not sampled keeps its field, and is recorded only where it fails."""
    unsampled = ("traceparent", f"00-{TRACE}-{CALLER}-00")

    async def whole() -> None:
        engine = await GrpcEngine(answer).start()
        async with grpc_stage(many({"m": engine}), tmp_path, tracing=NONE) as it:
            client = await it.grpc()
            await client.ask(request(), metadata=[unsampled])
            assert engine.calls[-1].value("traceparent") == unsampled[1]
            assert recorded(it) == []
            engine.script = refuse
            assert (await client.ask(request(), metadata=[unsampled])).status == 14
            (span,) = recorded(it)
            assert (span.why, span.code, span.status) == ("error", 14, 503)
        await engine.stop()

    run(whole())
