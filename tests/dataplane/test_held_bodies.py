"""What a worker holds of unfinished requests is bounded: the largest is shed, and what it held is given back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.auth.token_verifier import TokenVerifier
from gateway.dataplane.context.held_bodies import HeldBodies
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.wire.grpc import framed
from tests.dataplane.grpc.peers import STREAM, UNARY, GrpcEngine
from tests.dataplane.grpc.stage import grpc_rules, grpc_stage, request
from tests.dataplane.stage import Engine, run, stage, until
from tests.dataplane.test_tokens import Issuer

MB = 1 << 20
RESOURCE_EXHAUSTED = 8
BEGINNING = struct.pack("!BI", 0, 60 * MB) + b"\x0a\x01m" + bytes(128 * 1024)


@pytest.mark.parametrize("bound", ["max_buffered_bytes", "max_connection_bytes"])
@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_grpc_messages_that_do_not_end_are_shed(path: str, bound: str, tmp_path: Path) -> None:
    """Many calls of one connection, each with a part of a long message: what is held stays within the bound, the
    largest are answered RESOURCE_EXHAUSTED, and a whole call is answered meanwhile."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        limits = {bound: 2 * MB, "high_water_bytes": 64 * MB, "max_body_bytes": 64 * MB}
        async with grpc_stage(grpc_rules(engine), tmp_path, limits=limits) as it:
            client, held = await it.grpc(), it.plane.held
            calls = [client.call(path) for _ in range(40)]
            for call in calls:
                await call.send_raw(BEGINNING)
            await until(lambda: held.num_shed >= 20)
            shed = [call for call in calls if call.status is not None]
            await until(lambda: sum(call.status == RESOURCE_EXHAUSTED for call in calls) == held.num_shed)
            assert held.total <= 2 * MB, shed
            other = await it.grpc()
            assert (await other.ask(request())).status == 0
            client.abort()
            await until(lambda: not held.total)
        await engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_messages_that_wait_for_a_token_are_held(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What calls send while their token is verified counts as held: the largest are shed, and the others go on."""
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(TokenVerifier, "_verify_soon", lambda self, token, done: waiting.append(done))
    issuer = Issuer("i", "ES256")
    issuer.add("a")
    (tmp_path / "jwks.json").write_text(issuer.key_set())
    auth = "auth: {jwt: {issuer: i, audience: a, jwks: jwks.json, algorithms: ES256}}\n"

    async def scene() -> None:
        engine = await GrpcEngine().start()
        limits = {"max_buffered_bytes": 2 * MB, "high_water_bytes": 64 * MB, "max_body_bytes": 64 * MB}
        async with grpc_stage(grpc_rules(engine) + auth, tmp_path, limits=limits) as it:
            client, held = await it.grpc(), it.plane.held
            metadata = ("authorization", "Bearer " + issuer.token("a"))
            calls = [client.call(path, metadata) for _ in range(40)]
            for call in calls:
                await call.send_raw(BEGINNING)
            await until(lambda: sum(call.status == RESOURCE_EXHAUSTED for call in calls) == held.num_shed >= 20)
            assert 0 < held.total <= 2 * MB
            client.abort()
            await until(lambda: not held.total)
            assert len(waiting) == 40
        await engine.stop()

    run(scene())


def test_bodies_that_are_held_are_shed(tmp_path: Path) -> None:
    """Clients of HTTP/1.1 that do not end bodies which must be read whole: the largest is answered 503, the others go
    on when they end."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = (
            f"version: 1\nengines:\n  it: {{endpoints: ['{engine.url}']}}\nroutes:\n"
            "  - {name: told, match: {parameter: {level: high}}, engine: it}\n  - {name: all, engine: it}\n"
        )
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
        async with stage(text, tmp_path, limits={"max_buffered_bytes": MB}) as it:
            small, large = await it.client(), await it.client()
            await small.send(head % (400 * 1024) + b"{" + b" " * (300 * 1024))
            await until(lambda: it.plane.held.total > 300 * 1024)
            await large.send(head % (4 * MB) + b"{" + b" " * (900 * 1024))
            reply = await large.reply()
            assert (reply.status, reply.reason) == (503, "out_of_buffers")
            assert b"--max-buffered-bytes" in reply.body
            await small.send(b" " * (100 * 1024 - 2) + b"}")
            assert (await small.reply()).status == 200
            assert not it.plane.held.total
        engine.stop()

    run(scene())


def test_a_body_that_passes_is_not_held(tmp_path: Path) -> None:
    """A long body that goes on as it comes counts for nothing."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = f"version: 1\nengines:\n  it: {{endpoints: ['{engine.url}']}}\nroutes:\n  - {{name: all, engine: it}}\n"
        body = bytes(4 * MB)
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
        async with stage(text, tmp_path, limits={"max_buffered_bytes": 1}) as it:
            assert (await it.ask(head + body)).status == 200
        engine.stop()

    run(scene())


def test_a_message_in_pieces_that_ends_is_answered(tmp_path: Path) -> None:
    """A long message within the bounds is answered, and nothing of it stays counted."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(grpc_rules(engine), tmp_path, limits={"high_water_bytes": 64 * MB}) as it:
            client = await it.grpc()
            call = client.call()
            message = framed(request(raw_input_contents=[bytes(2 * MB)]))
            await call.send_raw(message[:MB])
            await until(lambda: it.plane.held.total)
            await call.send_raw(message[MB:], ended=True)
            assert (await call.over()).status == 0
            assert not it.plane.held.total
        await engine.stop()

    run(scene())


class Holding:
    """A request that is held."""

    def __init__(self) -> None:
        self.errors: list[GatewayError] = []

    def cancel(self, error: GatewayError) -> None:
        self.errors.append(error)


def test_the_largest_is_shed_first() -> None:
    """Of a worker's requests the largest, of a connection's that connection's largest; what is shed counts no more."""
    held = HeldBodies(100, 60)
    first, second, third = Holding(), Holding(), Holding()
    held.hold(first, 50, "a")
    held.hold(second, 20, "a")
    assert [error.kind for error in first.errors] == [ErrorKind.OUT_OF_BUFFERS] and held.total == 20
    held.hold(first, 55, "b")
    held.hold(third, 30, "c")
    assert len(first.errors) == 2 and not second.errors and not third.errors and held.total == 50
    for holder in (second, third, first):
        held.release(holder)
    assert (held.total, held.num_held, held.num_shed) == (0, 0, 2)


def test_memory_is_given_back_once_much_is_free() -> None:
    """What was held is returned to the system when three quarters of much are free, and not at each request's end."""
    held, returned = HeldBodies(1 << 40, 1 << 40), []
    held.on_fall = lambda: returned.append(held.total)
    holders = [Holding() for _ in range(8)]
    for size in (MB, 8 * MB):
        for holder in holders:
            held.hold(holder, size, "a")
        for holder in holders:
            held.release(holder)
        assert returned == ([] if size == MB else [16 * MB])
