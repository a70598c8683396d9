"""`max_body_bytes` of routes: the longest body of a request, in each client's API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.context.request_body import RequestBody
from tests.dataplane.grpc.peers import STREAM, GrpcEngine
from tests.dataplane.grpc.stage import grpc_stage, many, request
from tests.dataplane.stage import Engine, load, post, rules, run, stage

ROUTES = """  - {name: small, match: {model: small}, engine: it, max_body_bytes: 200}
  - {name: read, match: {model: read, parameter: {level: high}}, engine: it, max_body_bytes: 200}
  - {name: generate, match: {operation: generate}, engine: it, max_body_bytes: 100}
  - {name: all, engine: it, max_body_bytes: 64MiB}
"""
CHUNKED = b"POST /v2/models/small/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


def infer(model: str, size: int) -> bytes:
    """An inference whose body has this size."""
    opening = b'{"parameters":{"level":"high"}}'
    return post(f"/v2/models/{model}/infer", opening + b" " * (size - len(opening)))


@pytest.mark.parametrize(
    "model, size, status", [("small", 200, 200), ("small", 201, 413), ("read", 200, 200), ("read", 201, 413)]
)
def test_a_body_by_its_route(model: str, size: int, status: int, tmp_path: Path) -> None:
    """A longer body than its route allows gets 413, whether its head or its body decides the route."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, routes=ROUTES), tmp_path) as it:
            reply = await it.ask(infer(model, size))
            assert reply.status == status
            assert (b"200 bytes (max_body_bytes of its route)" in reply.body) == (status == 413)
            assert len(engine.received) == (status == 200)
            assert (await it.ask(infer("other", 100_000))).status == 200
            assert (await it.ask(post("/v2/models/other/generate", b" " * 101))).status == 413
        engine.stop()

    run(scene())


def test_a_body_is_refused_as_soon_as_it_is_known_to_be_too_long(tmp_path: Path) -> None:
    """By its Content-Length before any of it has come, in the middle where it has none, and by the gateway's option
    where that allows less than the route. New rules have their own bounds."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, routes=ROUTES), tmp_path, limits={"max_body_bytes": 1000}) as it:
            client = await it.client()
            await client.send(infer("small", 300).partition(b"{")[0])
            assert (await client.reply()).status == 413
            client = await it.client()
            await client.send(CHUNKED + b"c9\r\n" + bytes(201))
            assert (await client.reply()).status == 413
            assert b"1000 bytes (--max-body-bytes)" in (await it.ask(infer("other", 1001))).body
            it.plane.use_rules(load(rules(engine, routes=ROUTES.replace("200", "300")), tmp_path), 2)
            assert (await it.ask(infer("small", 300))).status == 200
            assert (await it.ask(infer("small", 301))).status == 413
        engine.stop()

    run(scene())


@pytest.mark.pure_python
def test_a_chunked_body_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a route has a bound, the JSON of a body without a length is read when all has come, not with each piece."""
    num_read = 0
    facts = RequestBody.facts

    def counted(self: RequestBody, *arguments: Any) -> Any:
        nonlocal num_read
        num_read += 1
        return facts(self, *arguments)

    monkeypatch.setattr(RequestBody, "facts", counted)

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        text = (
            f"version: 1\nengines: {{it: {{endpoints: ['{engine.url}']}}}}\nroutes:\n"
            "  - {name: hot, match: {parameter: {tier: hot}}, engine: it}\n"
            "  - {name: all, engine: it, max_body_bytes: 8MiB}\n"
        )
        body = b'{"inputs":[]}'
        head = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(head + b"inference-header-content-length: %d\r\n\r\n" % len(body))
            for piece in (body, *[b"x"] * 20, b""):
                await client.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(0)
            assert (await client.reply()).status == 200
            assert engine.received[-1].body == body + b"x" * 20
        engine.stop()

    run(scene())
    assert num_read == 1


@pytest.mark.parametrize("path, where", [("/v1/chat/completions", "code"), ("/v1/messages", "type")])
def test_a_body_that_names_its_model(path: str, where: str, tmp_path: Path) -> None:
    """Clients of OpenAI and Anthropic get the refusal in the form of their API."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(rules(engine, routes=ROUTES, options="protocol: openai"), tmp_path) as it:
            body = json.dumps({"model": "small", "max_tokens": 1, "messages": [{"role": "user", "content": "a" * 200}]})
            reply = await it.ask(post(path, body.encode()))
            assert (reply.status, reply.reason) == (413, "body_too_large")
            assert json.loads(reply.body)["error"][where] in ("body_too_large", "request_too_large")
        engine.stop()

    run(scene())


def test_a_body_over_http2(tmp_path: Path) -> None:
    """REST over HTTP/2 has the same bounds."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(rules(engine, routes=ROUTES), tmp_path) as it:
            client = await it.grpc()
            path = "/v2/models/small/infer"
            declared = client.request("POST", path, ("content-length", "201"))
            assert (await declared.over()).value(":status") == "413"
            call = client.request("POST", path)
            await call.send_raw(bytes(201))
            assert (await call.over()).value(":status") == "413"
            call = client.request("POST", path)
            await call.send_raw(b"{}", ended=True)
            assert (await call.over()).value(":status") == "200"
        engine.stop()

    run(scene())


def test_a_message(tmp_path: Path) -> None:
    """A unary call with a longer message ends with RESOURCE_EXHAUSTED, by its prefix; on a stream the message gets an
    error, and the stream goes on."""

    async def scene() -> None:
        engine = await GrpcEngine().start()
        async with grpc_stage(many({"it": engine}, ROUTES), tmp_path) as it:
            client = await it.grpc()
            long = request("small", parameters={}, raw_input_contents=[bytes(300)])
            call = await client.ask(long)
            assert call.status == 8
            assert "200 (max_body_bytes of its route)" in (call.value("grpc-message") or "")
            assert (await client.ask(request("small"))).status == 0
            stream: Any = client.call(STREAM)
            await stream.send(long)
            refused = await stream.message()
            assert b"max_body_bytes of its route" in refused
            await stream.send(request("small"), ended=True)
            assert await stream.message() is not None
            assert (await stream.over()).status == 0
            assert not engine.errors
        await engine.stop()

    run(scene())
