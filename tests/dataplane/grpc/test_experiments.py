"""Experiments by gRPC: unary calls, streams, engines of either kind, and the counts of each arm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from tests.dataplane.experiments import FORCING, KEY, arm, experiment_rules, filled
from tests.dataplane.grpc.peers import OPENING, STREAM, UNARY, Call, GrpcClient, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_stage, request
from tests.dataplane.stage import Engine, post, run, until

Play = Callable[[GrpcStage, GrpcClient, GrpcEngine, GrpcEngine], Coroutine[Any, Any, None]]

INVALID_ARGUMENT, PERMISSION_DENIED, INTERNAL, UNAVAILABLE = 3, 7, 13, 14


async def answer(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(RESULT)
    call.end()


def scene(tmp_path: Path, play: Play, script: Any = answer, more: str = "", keys: str = "") -> None:
    """Play with a client and both arms' engines, which run the same script."""

    async def whole() -> None:
        engines = [await GrpcEngine(script).start() for _ in range(2)]
        rules = experiment_rules(*engines, keys or "unit: 'header:x-user'", more)
        async with grpc_stage(rules, tmp_path) as it:
            await play(it, await it.grpc(), *engines)
        for engine in engines:
            await engine.stop()

    run(whole())


def by(user: object, *more: tuple[str, str]) -> list[tuple[str, str]]:
    return [("x-user", str(user)), *more]


def total(it: GrpcStage, what: str) -> int:
    return sum(sum(getattr(arm(it.plane, name), what)) for name in ("old", "new"))


def test_calls_are_counted_at_their_units_buckets(tmp_path: Path) -> None:
    """One user's calls count in one bucket of one arm; many users' calls count without errors."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        for _ in range(3):
            call = await client.ask(request(), metadata=by("ann"))
            assert call.status == 0
        name = call.value("x-pointsman-arm") or ""
        counts = arm(it.plane, name)
        assert (sum(counts.requests), filled(counts.requests), sum(counts.latency.count)) == (3, 1, 3)
        assert sum(counts.request_bytes) >= 3 * len(request())
        for number in range(40):
            await client.ask(request(), metadata=by(number))
        assert total(it, "requests") == 43
        assert total(it, "errors") == 0

    scene(tmp_path, play)


@pytest.mark.parametrize(
    "status, errors", [(INVALID_ARGUMENT, 0), (INTERNAL, 1), (UNAVAILABLE, 1), (2, 1), (15, 1), (5, 0)]
)
def test_statuses_that_are_a_servers_fault_are_errors(tmp_path: Path, status: int, errors: int) -> None:
    """A status that is the caller's fault counts as a request, and not as an error."""

    async def refuse(call: Call) -> None:
        await call.over()
        call.refuse(status, "no")

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        await client.ask(request(), metadata=by("ann"))
        assert (total(it, "requests"), total(it, "errors")) == (1, errors)
        kinds = arm(it.plane, "old").kinds | arm(it.plane, "new").kinds
        assert kinds == ({f"grpc_{status}": 1} if errors else {})

    scene(tmp_path, play, refuse)


def test_a_client_that_gives_up_says_nothing(tmp_path: Path) -> None:
    """A passed deadline counts as the engine's error; a client that leaves counts for no arm."""

    async def silent(call: Call) -> None:
        await call.over()
        await call.wait()

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        call = client.call(UNARY, *by("ann"))
        await call.send(request(), ended=True)
        await until(lambda: it.in_flight())
        call.reset()
        await until(lambda: "client_gone" in arm(it.plane, "old").kinds | arm(it.plane, "new").kinds)
        assert total(it, "requests") == 0
        await client.ask(request(), metadata=by("ann", ("grpc-timeout", "30m")))
        assert (total(it, "requests"), total(it, "errors")) == (1, 1)

    scene(tmp_path, play, silent)


def test_an_arm_is_chosen_by_metadata(tmp_path: Path) -> None:
    """The force key allows it; a wrong key is PERMISSION_DENIED. Neither field reaches an engine."""
    received: list[str] = []

    async def listen(call: Call) -> None:
        received.extend(f"{name}: {value}" for name, value in call.fields)
        await answer(call)

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        for name in ("old", "new"):
            forced = [("x-pointsman-force", f"x={name}"), ("x-pointsman-force-key", KEY)]
            call = await client.ask(request(), metadata=by("ann", *forced))
            assert (call.status, call.value("x-pointsman-arm")) == (0, name)
            assert arm(it.plane, name).forced == 1
        assert total(it, "requests") == 0
        call = await client.ask(request(), metadata=[("x-pointsman-force", "x=new"), ("x-pointsman-force-key", "no")])
        assert call.status == PERMISSION_DENIED
        call = await client.ask(request(), metadata=[("x-pointsman-force", "x=no"), ("x-pointsman-force-key", KEY)])
        assert call.status == INVALID_ARGUMENT
        assert not [line for line in received if "force" in line or KEY in line]

    scene(tmp_path, play, listen, FORCING)


def test_weights_hold_from_the_next_call_on(tmp_path: Path) -> None:
    """New weights apply to calls on the same connection with the same metadata."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        for weights, name in (({"old": 0.0, "new": 1.0}, "new"), ({"old": 1.0, "new": 0.0}, "old")):
            await client.ask(request(), metadata=by("ann"))
            it.plane.set_weights({"x": weights})
            assert (await client.ask(request(), metadata=by("ann"))).value("x-pointsman-arm") == name

    scene(tmp_path, play)


def streamed(*, error: str = "") -> bytes:
    """One message of a stream's reply."""
    made = service_pb2.ModelStreamInferResponse(error_message=error)
    if not error:
        made.infer_response.ParseFromString(RESULT)
    return bytes(made.SerializeToString())


async def stream_answer(call: Call) -> None:
    """Answers each message once."""
    if (call.value(":path") or "").endswith("ModelConfig"):
        await call.over()
        call.open()
        await call.send(service_pb2.ModelConfigResponse().SerializeToString())
        call.end()
        return
    call.open(OPENING)
    while await call.message() is not None:
        await call.send(streamed())
    call.end()


@pytest.mark.parametrize("keys", ["unit: 'header:x-user'", "unit: 'parameter:user'", "unit: session"])
def test_messages_of_a_stream_count_each(tmp_path: Path, keys: str) -> None:
    """Whatever the messages' units are, each message counts as a request, and each arm has one stream to its engine."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        call = client.call(STREAM, *by("ann"))
        for number in range(12):
            await call.send(
                request(request_id=str(number), parameters={"user": f"u{number}", "session_id": f"s{number}"})
            )
            await call.message()
        await call.send(ended=True)
        await call.over()
        await until(lambda: total(it, "requests") == 12)
        assert total(it, "errors") == 0
        streams = len(it.plane.metrics.by_key.values())
        assert streams <= 4

    scene(tmp_path, play, stream_answer, keys=keys)


def test_a_stream_that_goes_on_counts_already(tmp_path: Path) -> None:
    """While the stream is open, all answered messages but the last count, since the last may get more responses. At the
    end each message counts once, and errors count as errors. Without a unit in the messages, all of a stream's messages
    count in one bucket."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        def messages() -> tuple[int, int, dict[int, int]] | None:
            found = [series for series in it.plane.metrics.by_key.values() if series.messages_sent]
            return (found[0].messages_sent, found[0].messages_received, found[0].statuses) if found else None

        call = client.call(STREAM)
        for number in range(30):
            await call.send(request(request_id=str(number)))
            await call.message()
            if number in (9, 19):
                await until(lambda: messages() == (number + 1, number + 1, {}))  # noqa: B023 - over before the next one
                await until(lambda: total(it, "requests") == number)  # noqa: B023
                assert total(it, "errors") == 3 * ((number + 1) // 10)
        await call.send(ended=True)
        assert (await call.over()).status == 0
        await until(lambda: total(it, "requests") == 30)
        assert total(it, "errors") == 10
        assert sum(filled(arm(it.plane, name).requests) for name in ("old", "new")) == 1
        assert total(it, "request_bytes") == sum(series.request_bytes for series in it.plane.metrics.by_key.values())
        assert messages() == (30, 30, {200: 1})

    scene(tmp_path, play, every_third_fails, keys="unit: request")


def test_no_message_counts_twice(tmp_path: Path) -> None:
    """Messages of a decoupled model each get a response and later an error: each counts as one request."""
    goes_on = asyncio.Event()

    async def late(call: Call) -> None:
        call.open(OPENING)
        for _ in range(6):
            await call.message()
            await call.send(streamed())
        await goes_on.wait()
        await call.send(*[streamed(error="out of memory")] * 6)
        await call.over()
        call.end()

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(*[request()] * 6)
        await until(lambda: total(it, "requests") == 5)
        goes_on.set()
        await call.send(ended=True)
        assert (await call.over()).status == 0
        await until(lambda: total(it, "requests") > 5)
        assert (total(it, "requests"), total(it, "errors")) == (6, 1)

    scene(tmp_path, play, late, keys="unit: request")


def test_what_was_sent_last_counts_though_the_client_leaves(tmp_path: Path) -> None:
    """When the client leaves, the bytes of unanswered messages count too if others of the stream were answered."""

    async def answers_two(call: Call) -> None:
        call.open(OPENING)
        for _ in range(2):
            await call.message()
            await call.send(streamed())
        await call.wait()

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        call = client.call(STREAM)
        await call.send(*[request()] * 3)
        await until(lambda: total(it, "requests") == 2)
        before = total(it, "request_bytes")
        await call.send(*[request()] * 10)
        await until(lambda: sum(series.messages_sent for series in it.plane.metrics.by_key.values()) == 13)
        call.reset()
        await until(lambda: "client_gone" in arm(it.plane, "old").kinds | arm(it.plane, "new").kinds)
        assert total(it, "request_bytes") == before / 3 * 13
        assert total(it, "requests") == 2

    scene(tmp_path, play, answers_two, keys="unit: request")


async def every_third_fails(call: Call) -> None:
    """Answers messages, every third one by an `error_message`."""
    if (call.value(":path") or "").endswith("ModelConfig"):
        await stream_answer(call)
        return
    call.open(OPENING)
    number = 0
    while await call.message() is not None:
        number += 1
        await call.send(streamed(error="" if number % 3 else "out of memory"))
    call.end()


@pytest.mark.parametrize("at_once, leaves", [(True, False), (False, False), (False, True)])
def test_a_streams_error_messages_are_errors_of_its_arm(tmp_path: Path, at_once: bool, leaves: bool) -> None:
    """They count whether the stream ends well or the client leaves it."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        call = client.call(STREAM, *by("ann"))
        for number in range(9):
            await call.send(request(request_id=str(number)))
            if not at_once:
                await call.message()
        if leaves:
            call.reset()
        else:
            await call.send(ended=True)
            assert (await call.over()).status == 0
        await until(lambda: total(it, "requests") == 9)
        kinds = arm(it.plane, "old").kinds | arm(it.plane, "new").kinds
        assert (total(it, "errors"), kinds.get("stream_error")) == (3, 3)

    scene(tmp_path, play, every_third_fails)


def test_what_limits_refuse_of_a_stream_says_nothing_of_the_arm(tmp_path: Path) -> None:
    """A limit that refuses a stream at its first message counts as the kind `rate_limited`, and not as a request."""

    async def play(it: GrpcStage, client: GrpcClient, old: GrpcEngine, new: GrpcEngine) -> None:
        for _ in range(2):
            call = client.call(STREAM, *by("ann"))
            await call.send(request(), ended=True)
            await call.over()
        await until(lambda: total(it, "requests") > 0)
        kinds = arm(it.plane, "old").kinds | arm(it.plane, "new").kinds
        assert (total(it, "requests"), total(it, "errors"), kinds) == (1, 0, {"rate_limited": 1})

    scene(tmp_path, play, stream_answer, "limits: [{name: l, requests_per_second: 0.001, burst: 1}]\n")


def test_calls_to_rest_engines_and_rest_to_grpc_engines_count(tmp_path: Path) -> None:
    """Each request counts once, whether it is converted from gRPC to REST or from REST to gRPC."""

    async def whole() -> None:
        rest, grpc = Engine(), await GrpcEngine(answer).start()
        await rest.start()
        rest.script = rest_answer
        async with grpc_stage(experiment_rules(rest, grpc), tmp_path) as it:
            client = await it.grpc()
            for number in range(20):
                call = await client.ask(request(), metadata=by(number))
                assert call.status == 0
                reply = await it.ask(post("/v2/models/m/infer", BODY, f"x-user: {number}"))
                assert reply.status == 200
                assert reply.headers["x-pointsman-arm"] == call.value("x-pointsman-arm")
            assert [sum(arm(it.plane, name).requests) for name in ("old", "new")] == [
                len(rest.received),
                40 - len(rest.received),
            ]
            assert total(it, "requests") == sum(sum(arm(it.plane, name).latency.count) for name in ("old", "new"))
            assert 0 < len(rest.received) < 40
        rest.stop()
        await grpc.stop()

    run(whole())


BODY = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}'


async def rest_answer(
    engine: Engine, received: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    body = b'{"model_name":"m","model_version":"1","outputs":[]}'
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    )
