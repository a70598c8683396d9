"""Fallbacks of unary calls: which engine answers a call that the first one of its route cannot answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from gateway.observability.metrics import FallbackKey
from gateway.protocol.engine_load import Readiness
from tests.dataplane.grpc.peers import OPENING, STREAM, Call, Fields, GrpcClient, GrpcEngine, echo
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_stage, many, request
from tests.dataplane.stage import Engine, run

INVALID_ARGUMENT, DEADLINE, EXHAUSTED, INTERNAL, UNAVAILABLE = 3, 4, 8, 13, 14
ROUTE = "  - {name: all, engine: first, fallback: %s}\n"


async def answer(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(RESULT)
    call.end()


def refuses(code: int, text: str = "no", *, opening: bool = False) -> Any:
    """An engine that answers with a status alone, or in trailers behind its first fields."""
    status: Fields = [("grpc-status", str(code)), ("grpc-message", text)]

    async def refuse(call: Call) -> None:
        await call.over()
        if opening:
            call.open()
            call.end(status)
        else:
            call.open([*OPENING, *status], ended=True)

    return refuse


async def breaks(call: Call) -> None:
    await call.over()
    call.reset()


async def never(call: Call) -> None:
    await call.when(lambda: call.was_reset is not None or call.peer.is_lost)


def scene(
    tmp_path: Path, play: Any, script: Any, *, fallback: str = "[second]", options: str = "", **settings: Any
) -> None:
    """Play with a first engine of this script (None: it refuses connections), and a second one."""

    async def whole() -> None:
        first, second = await GrpcEngine(script or answer).start(), await GrpcEngine(answer).start()
        if script is None:
            await first.stop()
        rules = many({"first": (first, options), "second": second}, ROUTE % fallback)
        async with grpc_stage(rules, tmp_path, **settings) as it:
            await play(it, await it.grpc(), first, second)
            first.script = answer
        if script is not None:
            await first.stop()
        await second.stop()

    run(whole())


def from_second(call: Call, reason: str) -> None:
    assert call.status == 0, call
    assert call.messages == [RESULT]
    assert (call.value("x-pointsman-engine"), call.value("x-pointsman-fallback")) == ("second", reason)


def count_of(it: GrpcStage, reason: str) -> int:
    return it.plane.metrics.fallbacks[FallbackKey("all", "first", "second", reason)]


REFUSALS = {
    "unavailable": (refuses(UNAVAILABLE), "overloaded"),
    "in trailers": (refuses(UNAVAILABLE, opening=True), "overloaded"),
    "exhausted": (refuses(EXHAUSTED), "429"),
    "unreachable": (None, "down"),
}


@pytest.mark.parametrize("script, reason", REFUSALS.values(), ids=REFUSALS)
def test_an_engine_that_is_down_or_refuses(tmp_path: Path, script: Any, reason: str) -> None:
    """Another engine answers a call that its own refuses, with the same message and id; the log has both."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        for number in range(2):  # the second time with the same fields
            sent = request(raw_input_contents=[bytes([number])])
            from_second(await client.ask(sent), reason)
            assert second.calls[-1].messages == [sent]
        assert count_of(it, reason) == 2
        lines = it.log()
        assert [line["fallback"] for line in lines if line["engine"] == "second"] == [reason] * 2
        ids = [line["request_id"] for line in lines]
        assert ids[0] == ids[1] and len(set(ids)) == 2

    scene(tmp_path, play, script, options="breaker: {failures: 0}")


MAY_HAVE_RUN = {"500": (refuses(INTERNAL), "5xx"), "reset": (breaks, "down"), "timeout": (never, "deadline")}


@pytest.mark.parametrize("idempotent", ["safe", "infer"])
@pytest.mark.parametrize("script, reason", MAY_HAVE_RUN.values(), ids=MAY_HAVE_RUN)
def test_what_may_have_run(tmp_path: Path, idempotent: str, script: Any, reason: str) -> None:
    """After INTERNAL, a reset or a timeout, an inference goes on only where the rules say that it may run twice, and
    never where it names a sequence."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        call = await client.ask(request())
        if idempotent == "infer":
            from_second(call, reason)
        else:
            assert call.status and call.value("x-pointsman-engine") == "first"
        call = await client.ask(request(parameters={"sequence_id": 7}))
        assert call.status and call.value("x-pointsman-engine") == "first"

    options = f"{{idempotent: {idempotent}, attempts: 0}}"
    timeout = "\n    try_timeout: 50ms" if script is never else ""
    scene(tmp_path, play, script, options=f"retry: {options}\n    breaker: {{failures: 0}}{timeout}")


def test_a_refusal_for_another_reason_passes(tmp_path: Path) -> None:
    """INVALID_ARGUMENT is the client's, unless it says that the prompt is too long; `model:` is the name there."""

    async def refuse(call: Call) -> None:
        await call.over()
        is_long = b"long" in call.messages[0]
        text = "This model's maximum context length is 8 tokens" if is_long else "unexpected shape"
        call.open([*OPENING, ("grpc-status", "3"), ("grpc-message", text)], ended=True)

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        call = await client.ask(request())
        assert (call.status, call.value("grpc-message")) == (INVALID_ARGUMENT, "unexpected shape")
        from_second(await client.ask(request(raw_input_contents=[b"long"])), "context_length")
        assert service_pb2.ModelInferRequest.FromString(second.calls[0].messages[0]).model_name == "wide"

    scene(tmp_path, play, refuse, fallback="{engine: second, model: wide, on: context_length}")


def test_a_long_message_is_held(tmp_path: Path) -> None:
    """A message that comes in pieces, longer than what is usually kept, reaches the fallback whole; one beyond
    --retry-body-bytes stays where it was sent."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        sent = request(raw_input_contents=[b"x" * 600_000])
        from_second(await client.ask(sent), "overloaded")
        assert second.calls[0].messages == [sent]
        call = await client.ask(request(raw_input_contents=[b"x" * 1_200_000]))
        assert (call.status, call.value("x-pointsman-engine")) == (UNAVAILABLE, "first")

    scene(tmp_path, play, refuses(UNAVAILABLE))


def test_an_engine_whose_probes_fail_is_not_called(tmp_path: Path) -> None:
    """Where no endpoint takes requests, the fallback is called at once."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        it.plane.snapshot.engines["first"].endpoints[0].condition = Readiness.DOWN
        from_second(await client.ask(request()), "down")
        assert not first.calls and count_of(it, "down") == 1

    scene(tmp_path, play, answer)


def test_a_stream_begins_at_the_fallback(tmp_path: Path) -> None:
    """A stream whose engine takes no requests goes to the fallback with all of its messages; one that names a sequence
    does not."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        second.script = echo
        it.plane.snapshot.engines["first"].endpoints[0].condition = Readiness.DOWN
        call = client.call(STREAM)
        for request_id in ("a", "b"):
            await call.send(request(request_id=request_id))
            await call.message()
        await call.send_raw(b"", ended=True)
        await call.over()
        assert (call.status, len(call.messages)) == (0, 2)
        assert call.value("x-pointsman-fallback") == "down"
        assert len(second.calls) == count_of(it, "down") == 1
        call = client.call(STREAM)
        await call.send(request(parameters={"sequence_id": 7}), ended=True)
        await call.over()
        assert b"no endpoint is healthy" in call.messages[0]

    scene(tmp_path, play, answer)


@pytest.mark.parametrize("model", ["", "model: wide, "])
def test_a_stream_that_no_engine_got_goes_on(tmp_path: Path, model: str) -> None:
    """A stream whose engine refuses the connection goes to the fallback with all of its messages, under the model's
    name there, and ends with the fallback's status."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        second.script = echo
        call = client.call(STREAM)
        await call.send(request(request_id="a"), request(request_id="b"))
        await call.send(request(request_id="c"), ended=True)
        await call.over()
        assert (call.status, len(call.messages)) == (0, 3), call
        assert call.value("x-pointsman-fallback") == "down"
        received = [service_pb2.ModelInferRequest.FromString(each) for each in second.calls[0].messages]
        assert [(each.id, each.model_name) for each in received] == [(each, "wide" if model else "m") for each in "abc"]
        assert count_of(it, "down") == 1
        call = client.call(STREAM)
        await call.send(request(parameters={"sequence_id": 7}), ended=True)
        await call.over()
        assert len(second.calls) == 1 and len(call.messages) == 1

    fallback = f"{{engine: second, {model}on: down}}"
    scene(tmp_path, play, None, fallback=fallback, options="breaker: {failures: 0}")


def test_the_deadline_holds_over_all(tmp_path: Path) -> None:
    """The fallback gets what is left of the call's deadline, and a deadline that has passed leads nowhere."""

    async def play(it: GrpcStage, client: GrpcClient, first: GrpcEngine, second: GrpcEngine) -> None:
        from_second(await client.ask(request(), metadata=[("grpc-timeout", "20S")]), "deadline")
        [left] = [value for name, value in second.calls[0].fields if name == "grpc-timeout"]
        assert 0 < int(left[:-1]) <= 19_960_000 and left[-1] == "u"
        call = await client.ask(request(), metadata=[("grpc-timeout", "20m")])
        assert (call.status, len(second.calls)) == (DEADLINE, 1)

    scene(tmp_path, play, never, options="retry: {idempotent: infer, attempts: 0}\n    try_timeout: 50ms")


def test_the_fallback_may_have_rest_alone(tmp_path: Path) -> None:
    """A call for an engine with gRPC goes converted to one with REST, and a REST request for an engine with REST to one
    with gRPC."""

    async def reply(engine: Engine, received: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status, body = (
            (503, b'{"error":"busy"}')
            if b"no-rest" in received.head
            else (200, b'{"model_name":"rest","model_version":"1","outputs":[]}')
        )
        head = b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)

    async def whole() -> None:
        calls, rest = await GrpcEngine(refuses(UNAVAILABLE)).start(), Engine(reply)
        await rest.start()
        routes = (
            "  - {name: a, match: {model: a}, engine: calls, fallback: rest}\n"
            "  - {name: b, match: {model: no-rest}, engine: rest, fallback: calls}\n"
        )
        grpc_alone = calls.url.replace("http:", "grpc:")
        async with grpc_stage(many({"calls": grpc_alone, "rest": rest.url}, routes), tmp_path) as it:
            client = await it.grpc()
            call = await client.ask(request("a"), metadata=[("grpc-timeout", "20S")])
            assert (call.status, call.value("x-pointsman-engine")) == (0, "rest"), call
            assert call.value("x-pointsman-fallback") == "overloaded"
            assert service_pb2.ModelInferResponse.FromString(call.messages[0]).model_name == "rest"
            calls.script = answer
            http = await it.client()
            body = b'{"inputs":[]}'
            head = b"POST /v2/models/no-rest/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            answered = await http.ask(head + body)
            assert answered.status == 200, answered.body
            assert answered.headers["x-pointsman-engine"] == "calls"
            assert json.loads(answered.body)["model_name"] == "m"
        rest.stop()
        await calls.stop()

    run(whole())


def test_limits_count_a_call_once(tmp_path: Path) -> None:
    """A call that two engines get takes one request of a rate and one slot."""
    more = "\nlimits:\n  - {name: few, requests_per_second: 0.001, burst: 2}\n  - {name: slots, concurrency: 1}\n"

    async def whole() -> None:
        first, second = await GrpcEngine(refuses(UNAVAILABLE)).start(), await GrpcEngine(answer).start()
        async with grpc_stage(many({"first": first, "second": second}, ROUTE % "second") + more, tmp_path) as it:
            client = await it.grpc()
            for _ in range(2):
                from_second(await client.ask(request()), "overloaded")
            assert (await client.ask(request())).status == EXHAUSTED
        await first.stop()
        await second.stop()

    run(whole())


def test_rest_over_http2(tmp_path: Path) -> None:
    """A REST request on HTTP/2 falls back as one on HTTP/1.1 does."""

    async def whole() -> None:
        first, second = Engine(reply_with(503)), Engine(reply_with(200))
        await first.start()
        await second.start()
        async with grpc_stage(many({"first": first, "second": second}, ROUTE % "second"), tmp_path) as it:
            client = await it.grpc()
            call = client.request("POST", "/v2/models/m/infer", ("content-type", "application/json"))
            await call.send_raw(b'{"inputs":[]}', ended=True)
            await call.over()
            assert (call.value(":status"), bytes(call.data)) == ("200", b"{}")
            assert call.value("x-pointsman-fallback") == "overloaded"
        assert second.received[0].body == b'{"inputs":[]}'
        first.stop()
        second.stop()

    run(whole())


def reply_with(status: int) -> Any:
    async def answer(engine: Engine, received: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" % status)

    return answer
