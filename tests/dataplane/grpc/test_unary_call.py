"""Unary calls: what passes, what is retried, which status each kind of failure gets."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import OPENING, Call, GrpcClient, GrpcEngine, echo
from tests.dataplane.grpc.stage import RESULT, WINDOW, GrpcStage, grpc_rules, grpc_stage, many, request
from tests.dataplane.stage import run, until

INVALID_ARGUMENT, DEADLINE, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 4, 5, 8, 12, 13, 14
BAD_REQUEST = INVALID_ARGUMENT


async def answer(call: Call) -> None:
    """Answer with RESULT."""
    await call.over()
    call.open()
    await call.send(RESULT)
    call.end()


def scene(tmp_path: Path, play: Any, *scripts: Any, options: str = "", limits: Any = None, **more: Any) -> None:
    """Play with a client and engines of these scripts behind one route."""

    async def whole() -> None:
        engines = [await GrpcEngine(script).start() for script in scripts or (answer,)]
        async with grpc_stage(grpc_rules(*engines, options=options), tmp_path, limits=limits, **more) as it:
            await play(it, await it.grpc(), *engines)
            for engine in engines:
                engine.script = answer
        for engine in engines:
            await engine.stop()

    run(whole())


def test_a_call_passes_with_its_metadata(tmp_path: Path) -> None:
    """Metadata passes both ways unchanged, `-bin` values too; the gateway sets the hop-by-hop fields itself."""

    async def told(call: Call) -> None:
        await call.over()
        call.open([*OPENING, ("x-began", "yes"), ("began-bin", "AAEC")])
        await call.send(RESULT)
        call.end([("grpc-status", "0"), ("x-ended", "yes"), ("ended-bin", "/w==")])

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        sent = request(raw_input_contents=[bytes(range(256))])
        metadata = [("x-mine", "1"), ("x-mine", "2"), ("trace-bin", "AAEC"), ("x-request-id", "r-1"), ("cookie", "a=b")]
        metadata.append(("x-pointsman-shadow", "r"))  # a client cannot mark itself as a shadow
        call = await client.ask(sent, metadata=metadata)
        assert call.messages == [RESULT]
        told = [call.value(name) for name in ("x-began", "began-bin", "x-ended", "ended-bin")]
        assert told == ["yes", "AAEC", "yes", "/w=="]
        assert (call.value("x-pointsman-route"), call.value("x-request-id")) == ("all", "r-1")
        received = engine.calls[0]
        assert received.messages == [sent]
        assert [value for name, value in received.fields if name == "x-mine"] == ["1", "2"]
        passed = dict(received.fields)
        assert passed["trace-bin"] == "AAEC" and passed["cookie"] == "a=b" and passed["x-request-id"] == "r-1"
        assert passed["te"] == "trailers" and passed["via"] == "1.1 pointsman"
        assert passed[":authority"] == engine.address
        assert passed["x-forwarded-for"] == "127.0.0.1" and passed["x-forwarded-proto"] == "http"
        assert "x-pointsman-shadow" not in passed

    scene(tmp_path, play, told)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_engine_fields_replace_the_gateways(tmp_path: Path, method: str) -> None:
    """What the gateway adds itself is not added where the engine declares it: each field comes once."""
    names = ("x-request-id", "x-forwarded-for", "via")

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        path, theirs = f"/inference.GRPCInferenceService/{method}", [(name, "theirs") for name in names]
        call = await client.ask(request(), path=path, metadata=theirs)
        assert call.value("x-request-id") == "theirs"
        received = [field for field in engine.calls[0].fields if field[0] in (*names, "x-forwarded-proto")]
        assert sorted(received) == sorted([*((name, "ours") for name in names), ("x-forwarded-proto", "http")])

    scene(tmp_path, play, options=f"headers: {{{', '.join(f'{name}: ours' for name in names)}}}")


def test_the_first_fields_come_before_the_message(tmp_path: Path) -> None:
    """The client gets the engine's first fields before the message."""
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        call.open([*OPENING, ("x-early", "yes")])
        await go_on.wait()
        await call.send(RESULT)
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        await call.send(request(), ended=True)
        await call.when(lambda: call.fields)
        assert call.value("x-early") == "yes" and not call.data
        go_on.set()
        assert (await call.over()).messages == [RESULT]

    scene(tmp_path, play, slow)


async def trailers_only(call: Call) -> None:
    call.refuse(NOT_FOUND, "no%20such thing", ("x-more", "yes"))


async def status_503(call: Call) -> None:
    await call.over()
    call.open([(":status", "503"), ("content-type", "text/html")])
    await call.send_raw(b"<html>overloaded</html>", ended=True)


async def status_503_alone(call: Call) -> None:
    await call.over()
    call.open([(":status", "503"), ("content-length", "0")], ended=True)


async def no_status(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(RESULT, ended=True)


async def headers_alone(call: Call) -> None:
    await call.over()
    call.open(ended=True)


async def broken_off(call: Call) -> None:
    await call.over()
    call.open()
    await call.send_raw(framed(RESULT)[:9])
    call.reset(ErrorCodes.INTERNAL_ERROR)


async def lost(call: Call) -> None:
    await call.over()
    call.open()
    await call.send_raw(framed(RESULT)[:9])
    call.peer.abort()


REPLIES = [
    (trailers_only, NOT_FOUND, None),
    (status_503, UNAVAILABLE, "upstream_protocol"),
    (status_503_alone, None, None),  # clients map 503 to UNAVAILABLE
    (no_status, UNAVAILABLE, "upstream_protocol"),
    (headers_alone, None, None),
    (broken_off, UNAVAILABLE, "upstream_reset"),
    (lost, UNAVAILABLE, "upstream_reset"),
]


@pytest.mark.parametrize("script, status, reason", REPLIES, ids=lambda value: getattr(value, "__name__", ""))
def test_replies_that_go_wrong(tmp_path: Path, script: Any, status: int | None, reason: str | None) -> None:
    """The engine's status passes; a reply without one gets an error that names the endpoint."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request())
        assert (call.status, call.value("x-pointsman-reason")) == (status, reason)
        assert len(engine.calls) == 1
        if reason is not None:
            assert engine.address in (call.value("grpc-message") or "")
        if script is trailers_only:
            assert call.value("grpc-message") == "no%20such thing" and call.value("x-more") == "yes"

    scene(tmp_path, play, script)


# Retries


def refuse_stream(call: Call) -> Any:
    async def whole() -> None:
        call.reset(ErrorCodes.REFUSED_STREAM)

    return whole()


async def go_away(call: Call) -> None:
    call.peer.leave(last_id=0)


async def reset_once_sent(call: Call) -> None:
    await call.over()
    call.reset(ErrorCodes.INTERNAL_ERROR)


@pytest.mark.parametrize("script", [refuse_stream, go_away], ids=["REFUSED_STREAM", "GOAWAY"])
def test_what_the_engine_has_not_touched_is_tried_again(tmp_path: Path, script: Any) -> None:
    """A call is always retried when the engine refuses its stream or sends GOAWAY before it, since the engine has not
    processed it."""

    async def play(it: GrpcStage, client: GrpcClient, *engines: GrpcEngine) -> None:
        body = request(parameters={"sequence_id": 7})
        for _ in range(4):
            call = await client.ask(body)
            assert (call.status, call.messages) == (0, [RESULT])
        series = it.plane.metrics.by_key.values()
        assert sum(each.retries for each in series) == len(engines[0].calls) >= 1
        assert it.requests() == {200: 4}

    scene(tmp_path, play, script, answer, options="balance: round_robin")


TRIES = [
    ("{idempotent: infer}", {}, 2),
    ("{idempotent: infer}", {"sequence_id": 7}, 1),
    ("{idempotent: safe}", {}, 1),
    ("{idempotent: infer, attempts: 0}", {}, 1),
    ("{idempotent: infer, budget: 0, budget_floor: 0}", {}, 1),
]


@pytest.mark.parametrize("retry, parameters, tries", TRIES)
def test_what_was_sent_is_repeated_only_where_it_may_be(
    tmp_path: Path, retry: str, parameters: dict[str, Any], tries: int
) -> None:
    """A call that the engine broke off may have run: a retry needs `idempotent: infer`, no sequence, and budget."""

    async def play(it: GrpcStage, client: GrpcClient, *engines: GrpcEngine) -> None:
        call = await client.ask(request(parameters=parameters))
        assert sum(len(engine.calls) for engine in engines) == tries
        assert (call.status, call.value("x-pointsman-reason")) == (UNAVAILABLE, "upstream_reset")
        assert it.errors() == {"upstream_reset": 1}
        assert sum(series.retries for series in it.plane.metrics.by_key.values()) == tries - 1

    async def other(call: Call) -> None:
        await reset_once_sent(call)

    scene(
        tmp_path,
        play,
        reset_once_sent,
        other,
        options=f"retry: {retry[:-1]}, attempts: 1}}" if "attempts" not in retry else f"retry: {retry}",
    )


def test_questions_may_be_asked_twice(tmp_path: Path) -> None:
    """A read-only call (metadata, readiness) is retried without `idempotent`."""

    async def once(call: Call) -> None:
        if call.id == 1:
            await reset_once_sent(call)
        else:
            await answer(call)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request(), path="/inference.GRPCInferenceService/ModelMetadata")
        assert (call.status, call.messages, len(engine.calls)) == (0, [RESULT], 2)

    scene(tmp_path, play, once)


def test_refused_connections(tmp_path: Path) -> None:
    """A call goes to the endpoint that listens; with none, the error names the endpoint tried last."""

    async def whole() -> None:
        gone, there = await GrpcEngine().start(), await GrpcEngine(answer).start()
        gone.stop_listening()
        text = grpc_rules(gone, there, options="balance: round_robin")
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            for _ in range(6):
                assert (await client.ask(request())).status == 0
            there.stop_listening()
            there.break_connections()
            call = await client.ask(request())
            while call.value("x-pointsman-reason") == "upstream_reset":  # the gateway has not noticed the break yet
                call = await client.ask(request())
            assert (call.status, call.value("x-pointsman-reason")) == (UNAVAILABLE, "upstream_connect")
            assert "cannot connect to 127.0.0.1" in (call.value("grpc-message") or "")
        await there.stop()
        await gone.stop()

    run(whole())


def test_the_breaker_counts_failures_in_a_row(tmp_path: Path) -> None:
    """After three failures calls go to another endpoint; a model's error status is no failure."""

    async def play(it: GrpcStage, client: GrpcClient, bad: GrpcEngine, good: GrpcEngine) -> None:
        for _ in range(12):
            await client.ask(request())
        assert len(bad.calls) == 3 and len(good.calls) == 9
        broken = [endpoint.url for endpoint in it.endpoints() if not endpoint.breaker.is_closed]
        assert broken == [bad.url]

    async def refuses(call: Call) -> None:
        call.refuse(INVALID_ARGUMENT, "not mine")

    scene(
        tmp_path,
        play,
        reset_once_sent,
        refuses,
        options="{balance: round_robin, breaker: {failures: 3, open_for: 60s}}"[1:-1].replace(
            ", breaker", "\n    breaker"
        ),
    )


# Time


def test_the_deadline_is_passed_on_and_kept(tmp_path: Path) -> None:
    """The engine gets the remaining time; when the deadline passes, the engine's stream is reset and the client gets an
    error."""

    async def silent(call: Call) -> None:
        await call.over()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request(), metadata=[("grpc-timeout", "200m")])
        assert (call.status, call.value("x-pointsman-reason")) == (DEADLINE, "deadline")
        received = engine.calls[0]
        assert seconds(received.value("grpc-timeout")) <= 0.2
        await received.when(lambda: received.was_reset == ErrorCodes.CANCEL)
        assert it.errors() == {"deadline": 1}
        assert all(endpoint.breaker.is_spotless for endpoint in it.endpoints())

    async def waits(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    scene(tmp_path, play, waits)


def test_the_deadline_runs_on_while_the_reply_comes(tmp_path: Path) -> None:
    """The deadline also cuts a reply that has begun."""

    async def begins(call: Call) -> None:
        call.open()
        await call.send_raw(framed(RESULT)[:7])
        await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request(), metadata=[("grpc-timeout", "100000u")])
        assert (call.status, call.data) == (DEADLINE, framed(RESULT)[:7])

    scene(tmp_path, play, begins)


@pytest.mark.parametrize("value", ["5", "123456789S", "-1S", "1x", ""])
def test_malformed_deadlines(tmp_path: Path, value: str) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request(), metadata=[("grpc-timeout", value)])
        assert (call.status, engine.calls) == (BAD_REQUEST, [])

    scene(tmp_path, play)


def seconds(timeout: str | None) -> float:
    assert timeout is not None
    return int(timeout[:-1]) * {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0}[timeout[-1]]


@pytest.mark.parametrize("options, tries", [("timeout: 100ms", 1), ("try_timeout: 50ms", 1)])
def test_an_engine_that_does_not_answer(tmp_path: Path, options: str, tries: int) -> None:
    """The engine's timeout applies: a client without a deadline gets DEADLINE_EXCEEDED."""

    async def waits(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request())
        assert (call.status, call.value("x-pointsman-reason")) == (DEADLINE, "deadline")
        assert len(engine.calls) == tries
        assert not all(endpoint.breaker.is_spotless for endpoint in it.endpoints())

    scene(tmp_path, play, waits, options=options)


def test_try_timeout_moves_on(tmp_path: Path) -> None:
    """A try that exceeds `try_timeout` goes to another endpoint if the call may be retried."""

    async def waits(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, client: GrpcClient, slow: GrpcEngine, quick: GrpcEngine) -> None:
        for _ in range(2):
            assert (await client.ask(request())).status == 0
        assert len(slow.calls) >= 1 and len(quick.calls) == 2

    options = "balance: round_robin\n    try_timeout: 50ms\n    retry: {idempotent: infer}"
    scene(tmp_path, play, waits, answer, options=options)


def test_an_engine_that_falls_silent_in_its_reply(tmp_path: Path) -> None:
    """A silence longer than the engine's `idle_timeout` ends the call with DEADLINE_EXCEEDED."""

    async def begins(call: Call) -> None:
        call.open()
        await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request())
        assert (call.status, call.value("x-pointsman-reason")) == (DEADLINE, "deadline")

    scene(tmp_path, play, begins, options="idle_timeout: 100ms")


# Clients that leave


@pytest.mark.parametrize("way", ["reset", "abort"])
def test_a_client_that_leaves(tmp_path: Path, way: str) -> None:
    """The engine's stream is cancelled at once, whether the client cancels the call or loses the connection."""

    async def waits(call: Call) -> None:
        await call.when(lambda: call.was_reset is not None)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        await call.send(request(), ended=True)
        await until(lambda: engine.calls)
        assert it.in_flight() == 1
        call.reset() if way == "reset" else client.abort()
        received = engine.calls[0]
        await received.when(lambda: received.was_reset == ErrorCodes.CANCEL)
        assert it.in_flight() == 0 and it.errors() == {"client_gone": 1}

    scene(tmp_path, play, waits)


def test_a_client_that_leaves_while_the_gateway_connects(tmp_path: Path) -> None:
    """Each call that its client cancels while the gateway connects ends at once."""

    async def whole() -> None:
        listening = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, backlog=1)
        port = listening.sockets[0].getsockname()[1]
        text = many({"m": (f"grpc://127.0.0.1:{port}", "connections: {connect_timeout: 300ms}")})
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            calls = [client.call() for _ in range(20)]
            for call in calls:
                await call.send(request(), ended=True)
            for call in calls:
                call.reset()
            await until(lambda: it.errors() == {"client_gone": 20})
        listening.close()

    run(whole())


# Messages


def compressed(encoding: str, plain: bytes) -> bytes:
    packed = gzip.compress(plain) if encoding == "gzip" else zlib.compress(plain)
    return b"\x01" + len(packed).to_bytes(4) + packed


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("route", ["  - {name: all, engine: it}\n", "  - {name: all, engine: it, model: there}\n"])
def test_compressed_messages(tmp_path: Path, encoding: str, route: str) -> None:
    """Compressed messages pass unchanged; where the route renames the model, they are sent uncompressed."""

    async def whole() -> None:
        engine = await GrpcEngine(answer).start()
        async with grpc_stage(grpc_rules(engine, routes=route), tmp_path) as it:
            client = await it.grpc()
            call = client.call("/inference.GRPCInferenceService/ModelInfer", ("grpc-encoding", encoding))
            data = compressed(encoding, request())
            await call.send_raw(data, ended=True)
            assert (await call.over()).status == 0
            received = engine.calls[0]
            if "model" in route:
                assert (received.messages, received.compressed) == ([request("there")], [False])
            else:
                assert received.data == data
        await engine.stop()

    run(whole())


def packed_bomb() -> bytes:
    return compressed("gzip", b"\x0a\x01m" + b"\x3a\x80\x80\x80\x01" + bytes(2 << 20))


MALFORMED = [
    ("no message", b"", BAD_REQUEST),
    ("half a prefix", b"\0\0", BAD_REQUEST),
    ("half a message", framed(request())[:-1], BAD_REQUEST),
    ("an unknown flag", b"\x02" + framed(request())[1:], BAD_REQUEST),
    ("no protobuf", framed(b"\xff\xff\xff"), BAD_REQUEST),
    ("too long", b"\0\x7f\xff\xff\xff", EXHAUSTED),
    ("too long, unpacked", packed_bomb(), EXHAUSTED),
    ("compressed by nobody knows what", b"\x01\0\0\0\x01x", BAD_REQUEST),
]


@pytest.mark.parametrize("what, data, status", MALFORMED, ids=[each[0] for each in MALFORMED])
def test_malformed_messages(tmp_path: Path, what: str, data: bytes, status: int) -> None:
    """A malformed message is refused before any engine gets the call, and the connection stays open."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call("/inference.GRPCInferenceService/ModelInfer", ("grpc-encoding", "gzip"))
        await call.send_raw(data, ended=True)
        assert (await call.over()).status == status
        assert not engine.calls
        assert (await client.ask(request())).status == 0

    scene(tmp_path, play, limits={"max_body_bytes": 1 << 20})


def test_an_encoding_that_nobody_knows(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call("/inference.GRPCInferenceService/ModelInfer", ("grpc-encoding", "snappy"))
        await call.send_raw(b"\x01" + framed(request())[1:], ended=True)
        assert ((await call.over()).status, engine.calls) == (UNIMPLEMENTED, [])

    scene(tmp_path, play)


def test_names_that_come_late_or_twice(tmp_path: Path) -> None:
    """The last model name counts, wherever it stands, as in protobuf; a rename leaves one name."""

    async def whole() -> None:
        a, b = await GrpcEngine(answer).start(), await GrpcEngine(answer).start()
        routes = (
            "  - {name: a, match: {model: a}, engine: a, model: there}\n  - {name: b, match: {model: b}, engine: b}\n"
        )
        async with grpc_stage(many({"a": a, "b": b}, routes), tmp_path) as it:
            client = await it.grpc()
            twice = b"\x0a\x01a" + b"\x3a\x02xy" + b"\x0a\x01b"
            assert (await client.ask(twice)).value("x-pointsman-engine") == "b"
            assert b.calls[0].messages == [twice]
            late = b"\x3a\x02xy" + b"\x0a\x01b\x0a\x01a"
            assert (await client.ask(late)).value("x-pointsman-engine") == "a"
            assert a.calls[0].messages == [b"\x0a\x05there\x3a\x02xy"]
            call = await client.ask(request("c"))
            assert (call.status, call.value("x-pointsman-reason")) == (NOT_FOUND, "no_route")
        await a.stop()
        await b.stop()

    run(whole())


def test_two_messages(tmp_path: Path) -> None:
    """A second message reaches the engine, whose status the client gets."""

    async def refuses(call: Call) -> None:
        await call.over()
        call.refuse(INTERNAL if len(call.messages) == 2 else 0, "too many")

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = await client.ask(request(), request())
        assert (call.status, len(engine.calls[0].messages)) == (INTERNAL, 2)

    scene(tmp_path, play, refuses)


@pytest.mark.parametrize("size", [100_000, 5 << 20])
def test_long_messages_both_ways(tmp_path: Path, size: int) -> None:
    """Messages longer than every window, and than the default limit of gRPC servers, pass both ways."""

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        sent = request(raw_input_contents=[bytes(size)])
        call = await client.ask(sent)
        assert call.status == 0 and call.messages == [sent] == engine.calls[0].messages

    scene(tmp_path, play, echo)


def test_a_client_that_does_not_read_stops_its_engine(tmp_path: Path) -> None:
    """The engine's window closes before more than a few windows of data wait in memory; other calls continue."""
    size = 8 << 20

    async def long(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(bytes(size if len(call.data) > 100 else 1))
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        call.pause()
        await call.send(request(raw_input_contents=[bytes(100)]), ended=True)
        await until(lambda: len(call.data) >= 65_535)
        received = engine.calls[0]
        before = -1
        while before != received.num_sent:  # until the engine stops sending
            before = received.num_sent
            assert (await client.ask(request())).status == 0
        assert received.num_sent - len(call.data) < 2 * WINDOW
        call.resume()
        assert (await call.over()).status == 0 and len(call.messages[0]) == size

    scene(tmp_path, play, long)


def test_an_engine_that_does_not_read_stops_its_client(tmp_path: Path) -> None:
    """At most a few stream windows of a client's data wait in memory."""

    async def slow(call: Call) -> None:
        await call.when(lambda: len(call.data) > 60_000)
        call.pause()
        await go_on.wait()
        call.resume()
        await answer(call)

    go_on = asyncio.Event()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        sending = asyncio.create_task(call.send(request(raw_input_contents=[bytes(8 << 20)]), ended=True))
        await until(lambda: engine.calls)
        await it.settled(lambda: call.num_sent)
        assert call.num_sent - len(engine.calls[0].data) < 4 * WINDOW
        go_on.set()
        assert (await call.over()).status == 0
        await sending

    scene(tmp_path, play, slow)


def test_an_engine_that_answers_early(tmp_path: Path) -> None:
    """An engine's refusal before the message is complete is the reply; the client's stream is reset."""

    async def early(call: Call) -> None:
        call.refuse(EXHAUSTED, "enough")
        call.reset(ErrorCodes.NO_ERROR)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        await call.send_raw(framed(request(raw_input_contents=[bytes(1 << 20)]))[:400_000])
        await call.over()
        assert call.status == EXHAUSTED
        await call.when(lambda: call.was_reset == ErrorCodes.NO_ERROR)

    scene(tmp_path, play, early)


def test_an_engine_with_few_streams(tmp_path: Path) -> None:
    """All of many concurrent calls are answered, over as many connections as the engine's stream limit requires."""

    async def whole() -> None:
        engine = await GrpcEngine(answer, settings={SettingCodes.MAX_CONCURRENT_STREAMS: 2}).start()
        async with grpc_stage(grpc_rules(engine), tmp_path) as it:
            client = await it.grpc()
            await client.ask(request())
            calls = await asyncio.gather(*[client.ask(request()) for _ in range(20)])
            assert {call.status for call in calls} == {0}
            assert not engine.errors
        await engine.stop()

    run(whole())


@pytest.mark.pure_python
def test_a_slow_client_of_an_early_answer(tmp_path: Path) -> None:
    """Once the client has read the reply, the rest of its request is not needed: the stream ends without an error."""

    async def early(call: Call) -> None:
        call.open()
        await call.send(bytes(200_000))
        call.end()
        call.reset(ErrorCodes.NO_ERROR)

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        call.pause()
        await call.send_raw(framed(request(raw_input_contents=[bytes(3_000_000)]))[:600_000])
        await until(lambda: len(call.data) >= 65_535 and it.in_flight() == 0)
        await it.sweeps(4)
        call.resume()
        await call.when(lambda: call.ended)
        assert (call.status, len(call.messages)) == (0, 1)
        await call.when(lambda: call.was_reset == ErrorCodes.NO_ERROR)
        assert it.errors() == {} and it.requests() == {200: 1}
        assert not next(iter(it.plane.connections)).http2.streams  # type: ignore[attr-defined]

    scene(tmp_path, play, early, limits={"body_timeout": 2.0})


def test_a_client_that_leaves_before_it_has_read_all(tmp_path: Path) -> None:
    """The reply was complete: the call is counted and logged once."""

    async def long(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(bytes(200_000))
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        call.pause()
        await call.send(request(), ended=True)
        await until(lambda: len(call.data) >= 65_535 and it.in_flight() == 0)
        call.reset()
        await until(lambda: not next(iter(it.plane.connections)).http2.streams)  # type: ignore[attr-defined]
        assert it.requests() == {200: 1} and len(it.log()) == 1

    scene(tmp_path, play, long)


def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """When a client never reads, the gateway cancels its call after the body timeout; its other calls continue."""

    async def long(call: Call) -> None:
        await call.over()
        call.open()
        await call.send(bytes(200_000))
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, engine: GrpcEngine) -> None:
        call = client.call()
        call.pause()
        await call.send(request(), ended=True)
        await call.when(lambda: call.was_reset == ErrorCodes.CANCEL)
        other = await client.ask(request())
        assert (other.status, len(other.messages)) == (0, 1)

    scene(tmp_path, play, long, limits={"body_timeout": 0.2})
