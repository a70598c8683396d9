"""ModelStreamInfer: messages that go to several engines, and their responses on the one stream."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from tritonclient.grpc import service_pb2

from gateway.dataplane.context.call_head import CallPlan
from gateway.dataplane.grpc import stream_router
from gateway.protocol.infer_message_head import facts_or_error
from gateway.protocol.message_layouts import error_response
from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import OPENING, STREAM, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import WINDOW, GrpcStage, answers, grpc_rules, grpc_stage, many, request, response
from tests.dataplane.stage import run, until

INVALID_ARGUMENT, DEADLINE, NOT_FOUND, EXHAUSTED, UNAVAILABLE = 3, 4, 5, 8, 14


def id_of(message: bytes) -> str:
    return str(service_pb2.ModelInferRequest.FromString(message).id)


def model_of(message: bytes) -> str:
    return str(service_pb2.ModelInferRequest.FromString(message).model_name)


async def config(call: Call, *, decoupled: bool = False) -> bool:
    """Answer a ModelConfig call; return whether the call was one."""
    if not (call.value(":path") or "").endswith("ModelConfig"):
        return False
    await call.over()
    made = service_pb2.ModelConfigResponse()
    made.config.model_transaction_policy.decoupled = decoupled
    call.open()
    await call.send(made.SerializeToString())
    call.end()
    return True


class Model:
    """An engine's script: answers each message of a stream in order; `holds` delays the answers until `go_on`."""

    def __init__(self, *, decoupled: bool = False, holds: bool = False, size: int = 0, times: int = 1) -> None:
        self.decoupled = decoupled
        self.go_on = asyncio.Event()
        self.size = size
        self.times = times
        if not holds:
            self.go_on.set()

    async def __call__(self, call: Call) -> None:
        if await config(call, decoupled=self.decoupled):
            return
        call.open()
        while (message := await call.message()) is not None:
            await self.go_on.wait()
            for _ in range(self.times):
                await call.send(response(model_of(message), id_of(message), raw=[bytes(self.size)]))
        if call.was_reset is None and not call.peer.is_lost:
            call.end()


def scene(
    tmp_path: Path, play: Any, engines: dict[str, Any], *, routes: str = "", options: Any = None, **more: Any
) -> None:
    """Play with a client and engines by name, which serve the models whose names begin with it."""

    async def whole() -> None:
        made = {name: await GrpcEngine(script).start() for name, script in engines.items()}
        given = {name: (engine, (options or {}).get(name, "")) for name, engine in made.items()}
        async with grpc_stage(many(given, routes), tmp_path, **more) as it:
            await play(it, await it.grpc(), *made.values())
        for engine in made.values():
            await engine.stop()

    run(whole())


def streams_of(engine: GrpcEngine) -> list[Call]:
    return [call for call in engine.calls if call.value(":path") == STREAM]


async def got(call: Call, number: int) -> list[str]:
    await call.when(lambda: len(call.messages) >= number or call.is_over)
    return answers(call.messages)


def test_messages_go_their_models_ways(tmp_path: Path) -> None:
    """Each engine gets one stream, however many messages; the client's end of stream goes to every engine."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        for number in range(4):
            await call.send(request("a" if number % 2 else "b", str(number)))
        assert await got(call, 4) == ["0", "1", "2", "3"]
        await call.send(ended=True)
        assert (await call.over()).status == 0
        for engine, ids in ((a, ["1", "3"]), (b, ["0", "2"])):
            (stream,) = streams_of(engine)
            assert [id_of(message) for message in stream.messages] == ids
            assert stream.ended

    scene(tmp_path, play, {"a": Model(), "b": Model()})


def test_an_empty_stream(tmp_path: Path) -> None:
    """A stream without messages reaches no engine and counts as no error."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM, ended=True)
        assert ((await call.over()).status, call.messages, a.calls) == (0, [], [])

    scene(tmp_path, play, {"a": Model()})


def test_the_slow_first(tmp_path: Path) -> None:
    """Responses come in the order of the requests, even when the second engine answers first."""
    slow = Model(holds=True)

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"), request("b", "2"), request("b", "3"), request("a", "4"))
        await until(lambda: b.calls and streams_of(b) and streams_of(b)[0].num_sent)
        assert not call.messages
        slow.go_on.set()
        assert await got(call, 4) == ["1", "2", "3", "4"]
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": slow, "b": Model()})


def test_decoupled_models_wait_for_nobody(tmp_path: Path) -> None:
    """A decoupled model's responses are written when they come, any number of them."""
    slow = Model(holds=True)

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"), request("b", "2"))
        assert await got(call, 3) == ["2", "2", "2"]
        slow.go_on.set()
        assert await got(call, 4) == ["2", "2", "2", "1"]
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": slow, "b": Model(decoupled=True, times=3)})


def test_a_second_model_in_the_middle_of_a_response(tmp_path: Path) -> None:
    """When a second model joins while a response is passing through, that response stays whole and counts as an answer:
    later responses follow it."""
    go_on = asyncio.Event()

    async def cut(call: Call) -> None:
        if await config(call):
            return
        call.open()
        await call.message()
        whole = framed(response("a", "1", raw=[bytes(1000)]))
        await call.send_raw(whole[:300])
        await go_on.wait()
        await call.send_raw(whole[300:])
        assert await call.message() is not None
        await call.send(response("a", "3"))
        await call.over()
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"))
        await call.when(lambda: len(call.data) == 300)
        await call.send(request("b", "2"), request("nobody", "x"), request("a", "3"), request("b", "4"))
        await until(lambda: streams_of(b) and streams_of(b)[0].num_sent)
        assert len(call.data) == 300
        go_on.set()
        found = await got(call, 5)
        assert (
            found[:2] == ["1", "2"] and found[2].startswith("x: Request for unknown model") and found[3:] == ["3", "4"]
        )
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": cut, "b": Model()})


def test_one_model_that_goes_two_ways(tmp_path: Path) -> None:
    """Where the rules match the content of each message, one model can have two engines; their responses stay whole
    too."""
    go_on = asyncio.Event()

    async def cut(call: Call) -> None:
        call.open()
        await call.message()
        whole = framed(response("m", "1", raw=[bytes(1000)]))
        await call.send_raw(whole[:300])
        await go_on.wait()
        await call.send_raw(whole[300:])
        await call.over()
        call.end()

    routes = "  - {name: slow, match: {parameter: {way: slow}}, engine: a}\n  - {name: rest, engine: b}\n"

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("m", "1", parameters={"way": "slow"}))
        await call.when(lambda: len(call.data) == 300)
        await call.send(request("m", "2"))
        await until(lambda: streams_of(b) and streams_of(b)[0].num_sent)
        await asyncio.sleep(0)
        go_on.set()
        assert await got(call, 2) == ["1", "2"]
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": cut, "b": Model()}, routes=routes)


@pytest.mark.pure_python
def test_a_message_is_read_once_for_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the rules read sessions and the content of messages, each message costs one reading and one decision: a
    hostile stream has a million messages."""
    reads: list[bytes] = []
    monkeypatch.setattr(stream_router, "facts_or_error", lambda plain: reads.append(plain) or facts_or_error(plain))
    decide, decisions = CallPlan.decide, list[object]()
    monkeypatch.setattr(CallPlan, "decide", lambda plan, *facts: decisions.append(facts) or decide(plan, *facts))
    routes = "  - {name: slow, match: {parameter: {way: slow}}, engine: a}\n  - {name: rest, engine: b}\n"

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        for number in range(20):
            await call.send(request("m", str(number)))
        assert len(await got(call, 20)) == 20
        await call.send(ended=True)
        assert (await call.over()).status == 0
        assert (len(reads), len(decisions)) == (20, 21)

    scene(tmp_path, play, {"a": Model(), "b": Model()}, routes=routes, options={"a": "balance: session"})


@pytest.mark.parametrize("by_status", [False, True])
def test_an_endpoint_that_lacks_the_model_gets_no_more_streams(tmp_path: Path, by_status: bool) -> None:
    """Of two endpoints, one refuses the model by an error message, or by the stream's status. That costs one message:
    the next ones of the same stream, where it goes on, and all later streams go to the other endpoint."""
    text = "Request for unknown model: 'm' is not found"

    async def lacks(call: Call) -> None:
        while await call.message() is not None:
            if by_status:
                call.open([*OPENING, ("grpc-status", str(NOT_FOUND)), ("grpc-message", text)], ended=True)
                return
            call.open()
            await call.send(error_response(text, b""))
        call.end()

    async def whole() -> None:
        engines = [await GrpcEngine(lacks).start(), await GrpcEngine(Model()).start()]
        rules = grpc_rules(*engines, options="balance: round_robin")
        async with grpc_stage(rules, tmp_path) as it:
            client, num_refused = await it.grpc(), 0
            for _ in range(6):
                call = client.call(STREAM)
                await call.send(request("m", "1"))
                await call.when(lambda call=call: bool(call.data) or call.is_over)
                if call.is_over:
                    assert by_status and (await call.over()).status == NOT_FOUND
                    num_refused += 1
                    continue
                is_refused = text.encode() in bytes(call.data)
                num_refused += is_refused
                await call.send(request("m", "2"))
                assert (await got(call, 2))[1] == "2"
                await call.send(ended=True)
                assert (await call.over()).status == 0
            assert num_refused == 1
            assert len(streams_of(engines[0])) == 1
        for engine in engines:
            await engine.stop()

    run(whole())


# Errors


def test_no_route(tmp_path: Path) -> None:
    """A message without a route gets an error in its place, and the stream continues."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("nobody", "1"), request("a", "2"))
        assert await got(call, 2) == ["1: Request for unknown model: 'nobody' is not found", "2"]
        await call.send(ended=True)
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": Model()})


def test_who_asks_for_status_errors(tmp_path: Path) -> None:
    """With `triton_grpc_error: true` the first error ends the stream, and every engine's stream is cancelled."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM, ("triton_grpc_error", "true"))
        await call.send(request("a", "1"))
        assert await got(call, 1) == ["1"]
        await call.send(request("nobody", "2"))
        assert ((await call.over()).status, call.value("x-pointsman-reason")) == (NOT_FOUND, "no_route")
        (stream,) = streams_of(a)
        await stream.when(lambda: stream.was_reset == ErrorCodes.CANCEL)

    scene(tmp_path, play, {"a": Model()})


def test_an_engines_own_end(tmp_path: Path) -> None:
    """With one engine the client gets the engine's status, message and metadata."""

    async def ends(call: Call) -> None:
        await call.message()
        call.open([*OPENING, ("x-began", "yes")])
        call.end([("grpc-status", "3"), ("grpc-message", "not%20mine"), ("x-ended", "yes")])

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a"))
        await call.over()
        assert [call.value(name) for name in ("grpc-status", "grpc-message", "x-began", "x-ended")] == [
            "3",
            "not%20mine",
            "yes",
            "yes",
        ]

    scene(tmp_path, play, {"a": ends})


async def dies(call: Call) -> None:
    await call.message()
    call.peer.abort()


async def breaks_off(call: Call) -> None:
    call.open()
    await call.message()
    call.reset(ErrorCodes.INTERNAL_ERROR)


async def ends_without_status(call: Call) -> None:
    call.open()
    await call.message()
    await call.send(ended=True)


async def is_no_grpc(call: Call) -> None:
    await call.message()
    call.open([(":status", "503"), ("content-type", "text/html")])
    await call.send_raw(b"<html>overloaded</html>", ended=True)


@pytest.mark.parametrize("script", [dies, breaks_off, ends_without_status, is_no_grpc], ids=lambda it: it.__name__)
@pytest.mark.parametrize("others", [False, True])
def test_an_engine_that_breaks_off(tmp_path: Path, script: Any, others: bool) -> None:
    """When an engine breaks off, the whole stream fails and the other engines' streams are cancelled, since some
    messages cannot be answered."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        if others:
            await call.send(request("b", "1"))
            assert await got(call, 1) == ["1"]
        await call.send(request("a", "2"))
        await call.over()
        assert call.status == UNAVAILABLE
        assert answers(call.messages) == (["1"] if others else [])
        if others:
            (stream,) = streams_of(b)
            await stream.when(lambda: stream.was_reset == ErrorCodes.CANCEL)

    async def whole(call: Call) -> None:
        if not await config(call):
            await script(call)

    scene(tmp_path, play, {"a": whole, "b": Model()})


def malformed(data: bytes) -> Any:
    async def script(call: Call) -> None:
        if await config(call):
            return
        call.open()
        await call.message()
        await call.send_raw(data)
        await call.when(lambda: call.is_over)

    return script


@pytest.mark.parametrize(
    "data", [b"\x07\0\0\0\0", framed(b"\xff\xff\xff"), b"\x01" + framed(b"no gzip")[1:]], ids=["flag", "proto", "gzip"]
)
def test_an_engine_that_answers_nonsense(tmp_path: Path, data: bytes) -> None:
    """Where the gateway orders the responses, an engine's malformed message fails the stream and cancels the engine's
    stream."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("b", "1"), request("a", "2"))
        await call.over()
        assert call.status == UNAVAILABLE
        (stream,) = streams_of(a)
        await stream.when(lambda: stream.was_reset == ErrorCodes.CANCEL)

    scene(tmp_path, play, {"a": malformed(data), "b": Model()})


def test_an_engine_that_ends_without_answering(tmp_path: Path) -> None:
    """When an engine ends its stream without an answer, the other engine's later responses are still written."""

    async def ends(call: Call) -> None:
        if await config(call):
            return
        await call.over()
        call.open()
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"), request("b", "2"), ended=True)
        await call.over()
        assert (call.status, answers(call.messages)) == (0, ["2"])

    scene(tmp_path, play, {"a": ends, "b": Model()})


def test_a_stream_refused_untouched_is_opened_elsewhere(tmp_path: Path) -> None:
    """The other endpoint gets all messages again, in order."""

    async def refuses(call: Call) -> None:
        call.reset(ErrorCodes.REFUSED_STREAM)

    async def whole() -> None:
        first, second = await GrpcEngine(refuses).start(), await GrpcEngine(Model()).start()
        async with grpc_stage(grpc_rules(first, second, options="balance: round_robin"), tmp_path) as it:
            client = await it.grpc()
            for _ in range(4):
                call = client.call(STREAM)
                await call.send(*[request("m", str(number)) for number in range(5)], ended=True)
                await call.over()
                assert (call.status, answers(call.messages)) == (0, ["0", "1", "2", "3", "4"])
            assert first.calls
        await first.stop()
        await second.stop()

    run(whole())


def test_an_engine_that_cannot_be_reached(tmp_path: Path) -> None:
    """Each message for an unreachable engine gets an error in its place, and the stream continues with the others."""

    async def whole() -> None:
        gone = await GrpcEngine().start()
        gone.stop_listening()
        there = await GrpcEngine(Model()).start()
        text = many({"a": gone, "b": there})
        async with grpc_stage(text, tmp_path) as it:
            client = await it.grpc()
            call = client.call(STREAM)
            await call.send(*[request("ab"[number % 2], str(number)) for number in range(4)])
            found = sorted(await got(call, 4))
            assert found[1] == "1" and found[3] == "3"
            assert all(found[at].startswith(f"{at}: cannot connect to 127.0.0.1") for at in (0, 2))
            await call.send(ended=True)
            assert (await call.over()).status == 0
            call = client.call(STREAM, ("triton_grpc_error", "true"))
            await call.send(request("a"), request("a"), ended=True)
            assert ((await call.over()).status, call.value("x-pointsman-reason")) == (UNAVAILABLE, "upstream_connect")
        await gone.stop()
        await there.stop()

    run(whole())


@pytest.mark.parametrize("ends", ["answers", "says nothing"])
def test_responses_held_for_a_slow_engine(tmp_path: Path, ends: str) -> None:
    """Windows bound the responses that wait for their turn; the windows open again once the slow engine has answered or
    ended."""
    size, go_on = 400_000, asyncio.Event()

    async def slow(call: Call) -> None:
        if await config(call):
            return
        call.open()
        await call.message()
        await go_on.wait()
        if ends == "answers":
            await call.send(response("a", "x"))
        else:
            await call.over()
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "x"), *[request("b", str(number)) for number in range(16)], ended=True)
        await until(lambda: streams_of(b) and streams_of(b)[0].num_sent > WINDOW - size)
        assert not call.messages
        assert streams_of(b)[0].num_sent < 3 * WINDOW
        go_on.set()
        await call.over()
        assert call.status == 0
        assert answers(call.messages) == [*(["x"] if ends == "answers" else []), *map(str, range(16))]

    scene(tmp_path, play, {"a": slow, "b": Model(size=size)})


def test_an_engine_that_ends_in_the_middle_of_a_response(tmp_path: Path) -> None:
    """An incomplete last response fails the stream with UNAVAILABLE."""

    async def stops(call: Call) -> None:
        call.open()
        await call.message()
        await call.send_raw(framed(response("a"))[:-1])
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a"))
        await call.over()
        assert (call.status, call.value("x-pointsman-reason")) == (UNAVAILABLE, "upstream_protocol")

    scene(tmp_path, play, {"a": stops})


# Cancellation and deadlines


@pytest.mark.parametrize("way", ["reset", "abort"])
def test_a_client_that_leaves(tmp_path: Path, way: str) -> None:
    """Every engine's stream is cancelled at once."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a"), request("b"))
        await until(lambda: streams_of(a) and streams_of(b))
        assert it.in_flight() == 2
        call.reset() if way == "reset" else client.abort()
        for engine in (a, b):
            (stream,) = streams_of(engine)
            await stream.when(lambda stream=stream: stream.was_reset == ErrorCodes.CANCEL)
        assert it.in_flight() == 0

    scene(tmp_path, play, {"a": Model(holds=True), "b": Model(holds=True)})


def test_a_client_that_leaves_while_engines_are_asked(tmp_path: Path) -> None:
    """The gateway does not wait for open ModelConfig calls, which return whether a model is decoupled."""
    go_on = asyncio.Event()

    async def silent(call: Call) -> None:
        if (call.value(":path") or "").endswith("ModelConfig"):
            await go_on.wait()
        else:
            await Model()(call)

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a"), request("b"))
        await until(lambda: len(a.calls) == 2)
        call.reset()
        await until(lambda: it.in_flight() == 0)
        go_on.set()

    scene(tmp_path, play, {"a": silent, "b": silent})


def test_the_deadline_of_a_stream(tmp_path: Path) -> None:
    """The deadline ends the client's stream and every engine's; each engine got the remaining time. The error counts
    once for each engine."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM, ("grpc-timeout", "300m"))
        await call.send(request("a"), request("b"))
        assert ((await call.over()).status, call.value("x-pointsman-reason")) == (DEADLINE, "deadline")
        for engine in (a, b):
            (stream,) = streams_of(engine)
            assert (stream.value("grpc-timeout") or "")[-1] in "num"
            await stream.when(lambda stream=stream: stream.was_reset is not None)
        assert all(endpoint.breaker.is_spotless for endpoint in it.endpoints())
        assert (it.errors(), it.requests()[504]) == ({"deadline": 2}, 2)  # one for each engine

    scene(tmp_path, play, {"a": Model(holds=True), "b": Model(holds=True)})


@pytest.mark.parametrize("data", [b"\0\0", framed(request("a"))[:-1]])
def test_a_stream_that_ends_in_a_message(tmp_path: Path, data: bytes) -> None:
    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"))
        assert await got(call, 1) == ["1"]
        await call.send_raw(data, ended=True)
        assert (await call.over()).status == INVALID_ARGUMENT
        assert (it.errors(), it.requests()) == ({"bad_request": 1}, {400: 1})

    scene(tmp_path, play, {"a": Model()})


@pytest.mark.parametrize("data, status", [(b"\0\x7f\xff\xff\xff", EXHAUSTED), (framed(b"\xff\xff"), INVALID_ARGUMENT)])
def test_malformed_messages(tmp_path: Path, data: bytes, status: int) -> None:
    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send_raw(data)
        assert (await call.over()).status == status

    scene(tmp_path, play, {"a": Model()})


# Backpressure


@pytest.mark.parametrize("models", ["a", "ab"])
def test_a_client_that_does_not_read(tmp_path: Path, models: str) -> None:
    """Engines stop once their windows are full, whether one or two serve the stream; nothing is lost when the client
    reads again."""

    async def play(it: GrpcStage, client: GrpcClient, *engines: GrpcEngine) -> None:
        call = client.call(STREAM)
        if len(models) > 1:  # so that the gateway orders the responses
            await call.send(request("a", "x"), request("b", "y"))
            assert sorted(await got(call, 100)) == ["x"] * 50 + ["y"] * 50
        before = len(call.data)
        call.pause()
        await call.send(*[request(model, model) for model in models])
        used = engines[: len(models)]
        await until(lambda: len(call.data) - before >= 65_535 or before)
        sent = await it.settled(lambda: sum(streams_of(engine)[0].num_sent for engine in used))
        assert sent - len(call.data) < 2 * len(models) * WINDOW
        call.resume()
        await call.send(ended=True)
        assert (await call.over()).status == 0
        assert len(call.messages) == 50 * len(models) * len(models)

    engines = {"a": Model(decoupled=True, times=50, size=100_000), "b": Model(decoupled=True, times=50, size=100_000)}
    scene(tmp_path, play, engines)


def test_short_responses_to_a_client_that_does_not_read(tmp_path: Path) -> None:
    """Responses that pass through unparsed stop too once a window is full, and all arrive once the client reads again,
    with those of a second model that joins."""

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"))
        await call.when(lambda: len(call.messages) >= 2500)  # its window was given back by then
        call.pause()
        await call.send(request("a", "2"))
        sent = await it.settled(lambda: streams_of(a)[0].num_sent)
        assert sent - len(call.data) < 2 * WINDOW
        await call.send(request("b", "3"))
        call.resume()
        await call.send(ended=True)
        assert (await call.over()).status == 0
        assert sorted(answers(call.messages)) == ["1"] * 2500 + ["2"] * 2500 + ["3"]

    scene(tmp_path, play, {"a": Model(decoupled=True, times=2500, size=1000), "b": Model()})


def test_an_engine_that_does_not_read(tmp_path: Path) -> None:
    """The client's window stops it; while the gateway does not read, the client's silence does not count against the
    body timeout."""
    go_on = asyncio.Event()

    async def slow(call: Call) -> None:
        if await config(call):
            return
        call.pause()
        await go_on.wait()
        call.resume()
        await Model()(call)

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        messages = [request("a", str(number), raw_input_contents=[bytes(200_000)]) for number in range(40)]
        sending = asyncio.create_task(call.send(*messages, ended=True))
        await until(lambda: a.calls)
        assert await it.settled(lambda: call.num_sent) < 4 * WINDOW
        await it.sweeps(5)  # longer than the limit of 0.2 s
        assert call.status is None
        go_on.set()
        await sending
        assert await got(call, 40) == [str(number) for number in range(40)]
        assert (await call.over()).status == 0

    scene(tmp_path, play, {"a": slow}, limits={"body_timeout": 0.2})


def test_a_client_that_sends_while_the_first_endpoint_is_tried(tmp_path: Path) -> None:
    """Once another endpoint has taken the messages, their bytes are given back to the client's window."""

    async def whole() -> None:
        # Accepts connections, and refuses each stream after 60,000 bytes.
        async def refuses(call: Call) -> None:
            call.pause()
            await call.when(lambda: len(call.data) >= 60_000)
            call.reset(ErrorCodes.REFUSED_STREAM)

        first, second = await GrpcEngine(refuses).start(), await GrpcEngine(Model()).start()
        async with grpc_stage(grpc_rules(first, second, options="balance: round_robin"), tmp_path) as it:
            client = await it.grpc()
            for _ in range(3):
                call = client.call(STREAM)
                messages = [request("m", str(number), raw_input_contents=[bytes(50_000)]) for number in range(20)]
                await asyncio.wait_for(call.send(*messages, ended=True), 120)
                await call.over()
                assert (call.status, len(call.messages)) == (0, 20)
            assert first.calls
        await first.stop()
        await second.stop()

    run(whole())


def test_compressed_responses_of_two_engines(tmp_path: Path) -> None:
    """The client gets one encoding: responses in another one are decompressed."""

    def packing(pack: Any, name: str) -> Any:
        async def script(call: Call) -> None:
            if await config(call):
                return
            call.open([*OPENING, ("grpc-encoding", name)])
            while (message := await call.message()) is not None:
                packed = pack(response(model_of(message), id_of(message)))
                await call.send_raw(b"\x01" + len(packed).to_bytes(4) + packed)
            call.end()

        return script

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine, b: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("a", "1"), request("b", "2"), ended=True)
        await call.over()
        assert call.status == 0
        unpack = {"gzip": gzip.decompress, "deflate": zlib.decompress}.get(call.value("grpc-encoding") or "")
        plain = [
            unpack(message) if packed and unpack else message
            for packed, message in zip(call.compressed, call.messages, strict=True)
        ]
        assert answers(plain) == ["1", "2"]

    scene(tmp_path, play, {"a": packing(gzip.compress, "gzip"), "b": packing(zlib.compress, "deflate")})
    scene(tmp_path, play, {"a": Model(), "b": packing(zlib.compress, "deflate")})


def test_a_compressed_response_after_an_error_of_ours(tmp_path: Path) -> None:
    """By then the first fields are sent, without the engine's encoding, so the response is decompressed."""

    async def packs(call: Call) -> None:
        call.open([*OPENING, ("grpc-encoding", "gzip")])
        while (message := await call.message()) is not None:
            packed = gzip.compress(response(model_of(message), id_of(message)))
            await call.send_raw(b"\x01" + len(packed).to_bytes(4) + packed)
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, a: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(request("nobody", "1"))
        await got(call, 1)
        await call.send(request("a", "2"), ended=True)
        await call.over()
        assert call.status == 0
        assert call.value("grpc-encoding") == "gzip" or not any(call.compressed)

    scene(tmp_path, play, {"a": packs})
