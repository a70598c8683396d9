"""The gateway's own health and reflection services, with clients that behave and clients that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from gateway.protocol.engine_load import Readiness
from gateway.wire.http2.peer_state import PeerState
from tests.dataplane.grpc.peers import GrpcClient
from tests.dataplane.grpc.stage import GrpcStage, grpc_stage
from tests.dataplane.stage import run, until

INVALID_ARGUMENT, DEADLINE, NOT_FOUND, RESOURCE_EXHAUSTED, UNIMPLEMENTED, UNAVAILABLE = 3, 4, 5, 8, 12, 14
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
RULES = """
version: 1
engines: {it: {endpoints: ["grpc://127.0.0.1:1"]}}
routes: [{name: all, engine: it}]
"""
KEY = ("it", "grpc://127.0.0.1:1")


def scene(tmp_path: Path, play: Any, **more: Any) -> None:
    async def whole() -> None:
        async with grpc_stage(RULES, tmp_path, **more) as it:
            await play(it, await it.grpc())

    run(whole())


def asked(service: str = "") -> bytes:
    return bytes(health_pb2.HealthCheckRequest(service=service).SerializeToString())


def status_of(message: bytes) -> str:
    return str(
        health_pb2.HealthCheckResponse.ServingStatus.Name(health_pb2.HealthCheckResponse.FromString(message).status)
    )


def test_check_and_watch(tmp_path: Path) -> None:
    """`Check` reports the health once, `Watch` reports each change; a watcher that leaves is removed."""

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        it.plane.set_health({KEY: Readiness.READY})
        call = await client.ask(asked(), path=CHECK)
        assert (call.status, [status_of(each) for each in call.messages]) == (0, ["SERVING"])
        watch = client.call(WATCH)
        await watch.send(asked(), ended=True)
        await watch.message()
        it.plane.set_health({KEY: Readiness.DOWN})
        it.plane.set_health({KEY: Readiness.UNREADY})
        await watch.message()
        assert [status_of(each) for each in watch.messages] == ["SERVING", "NOT_SERVING"]
        unknown = client.call(WATCH)
        await unknown.send(asked("nobody"), ended=True)
        assert status_of(await unknown.message() or b"") == "SERVICE_UNKNOWN"
        assert (await client.ask(asked("nobody"), path=CHECK)).status == NOT_FOUND
        assert not watch.is_over
        watch.reset()
        unknown.reset()
        await until(lambda: it.errors().get("client_gone") == 2)

    scene(tmp_path, play)


def test_watch_with_a_deadline(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient) -> None:
        watch = client.call(WATCH, ("grpc-timeout", "100m"))
        await watch.send(asked(), ended=True)
        assert (await watch.over()).status == DEADLINE and len(watch.messages) == 1

    scene(tmp_path, play)


def test_watchers_hear_that_the_gateway_stops(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient) -> None:
        it.plane.set_health({KEY: Readiness.READY})
        watch = client.call(WATCH)
        await watch.send(asked(), ended=True)
        await watch.message()
        it.plane.drain()
        await watch.over()
        assert (watch.status, watch.was_reset) == (UNAVAILABLE, None)
        assert [status_of(each) for each in watch.messages] == ["SERVING", "NOT_SERVING"]

    scene(tmp_path, play)


MALFORMED = [(b"\x0a\x02\xff\xfe", INVALID_ARGUMENT), (b"\xff", INVALID_ARGUMENT)]


@pytest.mark.parametrize("message, status", MALFORMED)
@pytest.mark.parametrize("path", [CHECK, WATCH])
def test_malformed_questions(tmp_path: Path, path: str, message: bytes, status: int) -> None:
    async def play(it: GrpcStage, client: GrpcClient) -> None:
        assert (await client.ask(message, path=path)).status == status
        assert (await client.ask(path=path)).status == INVALID_ARGUMENT
        assert (await client.ask(asked(), asked(), path=path)).status == INVALID_ARGUMENT

    scene(tmp_path, play)


@pytest.mark.parametrize("path", ["/grpc.health.v1.Health/Nothing", "/a.B/C", "/inference.GRPCInferenceService/", "/"])
def test_unknown_methods(tmp_path: Path, path: str) -> None:
    """A call of an unknown method gets the error at once; the rest of the request is not read."""

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        call = client.call(path)
        await call.over()
        assert call.status == UNIMPLEMENTED
        await call.when(lambda: call.was_reset == 0)

    scene(tmp_path, play)


def symbol(name: str) -> bytes:
    made = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
    return bytes(made.SerializeToString())


def test_reflection(tmp_path: Path) -> None:
    """Each reflection request gets its response, in order; a symbol that is not found gets an error response."""

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        questions = [
            symbol("inference.ModelInferRequest"),
            symbol("nothing"),
            b"\xff\xff",
            symbol(CHECK[1:].split("/")[0]),
        ]
        call = await client.ask(*questions, path=REFLECTION)
        reply = [reflection_pb2.ServerReflectionResponse.FromString(message) for message in call.messages]
        kinds = [each.WhichOneof("message_response") for each in reply]
        assert call.status == 0
        assert kinds == ["file_descriptor_response", "error_response", "error_response", "file_descriptor_response"]

    scene(tmp_path, play)


def test_a_client_of_reflection_that_does_not_read(tmp_path: Path) -> None:
    """Small reflection requests have large responses: the gateway answers no faster than the client reads."""
    number = 2_000

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        call = client.call(REFLECTION)
        call.pause()
        question = symbol("inference.GRPCInferenceService")
        await call.send(*[question] * number, ended=True)
        await until(lambda: len(call.data) >= 65_535)
        (stream,) = next(iter(it.plane.connections)).http2.streams.values()  # type: ignore[attr-defined]
        await until(lambda: stream.peer_state is PeerState.ENDED)
        assert stream.num_waiting < 1_000_000
        assert (await client.ask(asked(), path=CHECK)).status == 0
        call.resume()
        await call.over()
        assert (call.status, len(call.messages)) == (0, number)

    scene(tmp_path, play)


def test_a_client_of_reflection_that_leaves(tmp_path: Path) -> None:
    async def play(it: GrpcStage, client: GrpcClient) -> None:
        call = client.call(REFLECTION)
        call.pause()
        await call.send(*[symbol("inference.GRPCInferenceService")] * 100)
        await until(lambda: len(call.data) >= 65_535)
        call.reset()
        await until(lambda: not next(iter(it.plane.connections)).http2.streams)  # type: ignore[attr-defined]

    scene(tmp_path, play)


def test_a_client_that_falls_silent(tmp_path: Path) -> None:
    """A client that sends no message, or stops in the middle of one, gets the time limit of a body; between messages
    there is no limit."""

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        calls = [client.call(path) for path in (CHECK, REFLECTION)]
        await calls[1].send_raw(b"\0\0\0")
        for call in calls:
            assert (await call.over()).status == DEADLINE
            assert call.value("x-pointsman-reason") == "request_timeout"
        goes_on = client.call(REFLECTION)
        await goes_on.send(symbol("nothing"))
        await goes_on.message()
        await it.sweeps(5)
        assert not goes_on.is_over
        await goes_on.send(ended=True)
        assert (await goes_on.over()).status == 0

    scene(tmp_path, play, limits={"body_timeout": 0.1})


@pytest.mark.parametrize("path", [CHECK, WATCH, REFLECTION])
def test_a_request_that_names_something_is_short(tmp_path: Path, path: str) -> None:
    """Health checks and reflection, which anybody may ask for, read names, and nothing of a size that costs time."""

    async def play(it: GrpcStage, client: GrpcClient) -> None:
        call = await client.ask(b"\x12\0" * 40_000, path=path)
        assert (call.status, call.messages) == (RESOURCE_EXHAUSTED, [])

    scene(tmp_path, play)
