"""Translated requests: what the engine gets, what can fail, and how a generation continues on another endpoint."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dataplane.http1_server import Http1ServerConnection
from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    MESSAGES,
    OPENAI,
    RESUMING,
    ROLE,
    STOP,
    STREAM,
    WHOLE,
    asked,
    chunk,
    event,
    first,
    goes_on,
    http,
    rest,
    started,
    token,
    writes,
)
from tests.dataplane.stage import Engine, ReceivedRequest, load, post, rules, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

BEGIN = STREAM + chunk(ROLE + token("a"))
BREAKS = writes(BEGIN, chunk(token("b")), then="reset")
# More than the event loop reads at once.
HELD = 1024 * 1024
ENDS = writes(STREAM + chunk(ROLE + token("c")), chunk(STOP + DONE) + LAST)


@pytest.mark.parametrize("garbage", [b"{no json", b"[]", b'{"choices": [5]}', b'{"choices":[{"delta":{"content":"a"},'])
@pytest.mark.parametrize("at", ["amid", "at the end"])
def test_what_nobody_understands_ends_the_reply(tmp_path: Path, garbage: bytes, at: str) -> None:
    """An event that cannot be parsed ends the reply with an error and closes the engine's connection; it does so as the
    last event too."""

    async def scene() -> None:
        spoilt = chunk(event(garbage))
        engine_says = [BEGIN, spoilt] if at == "amid" else [BEGIN, spoilt + LAST]
        [engine], text = await started(writes(*engine_says, then="hang" if at == "amid" else ""))
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(MESSAGES, asked(MESSAGES)))
            status, headers = await client.head()
            body, is_whole = await rest(client, headers)
            assert (status, is_whole) == (200, False)
            assert b"event: error\n" in body
            assert sum(it.errors().values()) == 1
            await until(lambda: engine.num_open == 0 or at != "amid")
        engine.stop()

    run(scene())


def test_a_reply_that_surprises_the_translator(tmp_path: Path) -> None:
    """A reply with a number that the JSON writer rejects is an error for that one client."""

    async def scene() -> None:
        odd = json.loads(WHOLE) | {"created": 1e300}
        [engine], text = await started(writes(http(200, json.dumps(odd).encode())))
        async with stage(text, tmp_path) as it:
            body = json.dumps({"model": "m", "input": "hi"}).encode()
            reply = await it.ask(post("/v1/responses", body))
            assert (reply.status, reply.reason) == (500, "internal")
            assert (await it.ask(post(MESSAGES, asked(MESSAGES, stream=False)))).status == 200
            assert it.errors() == {"internal": 1}
        engine.stop()

    run(scene())


def test_a_request_that_cannot_be_written(tmp_path: Path) -> None:
    """A request that is nested too deeply to be written for the engine is refused, and the error has its id."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)))
        async with stage(text, tmp_path) as it:
            schema = json.loads("[" * 300 + "]" * 300)
            body = asked(MESSAGES, tools=[{"name": "f", "input_schema": {"type": "object", "enum": schema}}])
            reply = await it.ask(post(MESSAGES, body, "X-Request-Id: mine"))
            assert (reply.status, reply.reason, reply.headers["x-request-id"]) == (400, "bad_request", "mine")
            assert engine.received == []
        engine.stop()

    run(scene())


def test_names_of_options_are_no_fields(tmp_path: Path) -> None:
    """Dropped options are listed in one field with bounded, safe text, whatever their names."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)), options=OPENAI + "\n    unsupported: drop")
        async with stage(text, tmp_path) as it:
            body = asked(MESSAGES, stream=False, **{"odd\r\nset-cookie: a=b": 1, "\u00fc" * 5000: 2})
            reply = await it.ask(post(MESSAGES, body))
            assert reply.status == 200
            assert "set-cookie" not in reply.headers
            assert reply.headers["x-pointsman-dropped"].startswith("odd??set-cookie: a=b")
            assert len(reply.headers["x-pointsman-dropped"]) <= 1024
        engine.stop()

    run(scene())


@pytest.mark.parametrize("stream", [False, True])
def test_clients_of_http_10(tmp_path: Path, stream: bool) -> None:
    """An HTTP/1.0 client, which sends no host, gets a reply that ends with the connection."""

    async def scene() -> None:
        [engine], text = await started(ENDS if stream else writes(http(200, WHOLE)))
        async with stage(text, tmp_path) as it:
            client = await it.client()
            body = asked(MESSAGES, stream=stream)
            await client.send(b"POST /v1/messages HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            status, headers = await client.head()
            reply = await client.reader.read()
            assert (status, headers.get("transfer-encoding")) == (200, None)
            assert reply.startswith(b"event: message_start\n" if stream else b"{")
        engine.stop()

    run(scene())


KEYED = (
    "  - {name: t, match: {tenant: x}, engine: it}\n  - {name: all, engine: it}\nidentity: {tenant_header: x-api-key}\n"
)


@pytest.mark.parametrize("routes", ["", KEYED], ids=["plain", "a rule asks for the key"])
@pytest.mark.parametrize(
    ("fields", "reply"),
    [
        (["x-api-key: k"], "Bearer k"),
        (["Authorization: Bearer a"], "Bearer a"),
        (["x-api-key: k", "Authorization: Bearer a"], "Bearer a"),
    ],
)
def test_the_key_of_an_anthropic_client(tmp_path: Path, fields: list[str], reply: str, routes: str) -> None:
    """The engine gets one `authorization` field, and none of the client's own Anthropic fields."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)), routes=routes)
        async with stage(text, tmp_path) as it:
            more = ["Accept-Encoding: gzip", "anthropic-version: 2023-06-01"]
            assert (await it.ask(post(MESSAGES, asked(MESSAGES, stream=False), *fields, *more))).status == 200
            [received] = engine.received
            assert received.value("authorization") == reply
            assert (
                received.value("x-api-key")
                is received.value("accept-encoding")
                is received.value("anthropic-version")
                is None
            )
            names = [line.split(b":")[0].lower() for line in received.head.split(b"\r\n")[1:] if line]
            assert len(names) == len(set(names))
        engine.stop()

    run(scene())


@pytest.mark.parametrize("protocol", ["torchserve", "mlserver", "kserve"])
@pytest.mark.parametrize("idempotent", ["safe", "infer"])
def test_inferences_run_twice_only_where_they_may(tmp_path: Path, protocol: str, idempotent: str) -> None:
    """An inference that has reached its engine is retried only if the rules allow it, whatever the engine's protocol;
    it counts no tokens."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}

    async def scene() -> None:
        options = f"protocol: {protocol}\n    retry: {{idempotent: {idempotent}}}"
        [engine], text = await started(writes(then="reset"), options=options)
        async with stage(text, tmp_path) as it:
            reply = await it.ask(post("/v2/models/m/infer", json.dumps({"inputs": [tensor]}).encode()))
            assert (reply.status, reply.reason) == (502, "upstream_reset")
            assert len(engine.received) == (1 if idempotent == "safe" else 3)
            assert not any(series.tokens for series in it.plane.metrics.by_key.values())
        engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    "answer",
    [http(400, b'{"error":{"message":"no"}}'), http(503, b"{}"), http(200, WHOLE), b"garbage\r\n\r\n"],
    ids=["400", "503", "whole", "garbage"],
)
def test_who_was_to_go_on_does_not(tmp_path: Path, answer: bytes, path: str) -> None:
    """When no engine can continue a generation that broke off, its stream ends with an error in the client's dialect,
    and without a second reply inside it."""

    async def scene() -> None:
        script = first(BREAKS, writes(answer))
        engines, text = await started(script, script, routes=RESUMING)
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(path, asked(path)))
            status, headers = await client.head()
            body, is_whole = await rest(client, headers)
            assert (status, is_whole) == (200, False)
            assert b"HTTP/1.1" not in body
            assert b'"error"' in body.split(b"\n\n")[-2]
        for engine in engines:
            engine.stop()

    run(scene())


@pytest.mark.parametrize(
    ("more", "goes"),
    [
        ({}, True),
        ({"response_format": {"type": "text"}, "min_tokens": 5, "max_tokens": 9}, True),
        ({"response_format": {"type": "json_object"}}, False),
        ({"n": 2}, False),
    ],
)
def test_what_can_go_on(tmp_path: Path, more: dict[str, Any], goes: bool) -> None:
    """A generation continues if the engine can continue it from the text so far; it gets the rest of the token
    limits."""

    async def scene() -> None:
        script = first(BREAKS, ENDS)
        engines, text = await started(script, script, routes=RESUMING)
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(CHAT, asked(CHAT, **more)))
            _, headers = await client.head()
            _, is_whole = await rest(client, headers)
            assert is_whole == goes
            later = [
                json.loads(received.body) for engine in engines for received in engine.received if goes_on(received)
            ]
            assert len(later) == goes
            if "min_tokens" in more:
                assert (later[0]["min_tokens"], later[0]["max_tokens"]) == (3, 7)
        for engine in engines:
            engine.stop()

    run(scene())


def test_thoughts_are_not_thought_twice(tmp_path: Path) -> None:
    """A generation that broke off in its reasoning is not restarted, since the client already has part of the
    reasoning."""
    thought = token("x").replace(b'"content"', b'"reasoning_content"')

    async def scene() -> None:
        script = writes(STREAM + chunk(ROLE + thought), then="reset")
        engines, text = await started(script, script, routes=RESUMING)
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(CHAT, asked(CHAT)))
            _, headers = await client.head()
            body, is_whole = await rest(client, headers)
            assert not is_whole
            assert body.count(b'"x"') == 1
            assert sum(len(engine.received) for engine in engines) == 1
        for engine in engines:
            engine.stop()

    run(scene())


def test_a_client_that_leaves_after_the_seam(tmp_path: Path) -> None:
    """When the client leaves, the engine that continues the generation is stopped too."""

    async def scene() -> None:
        script = first(BREAKS, writes(then="hang"))
        engines, text = await started(script, script, routes=RESUMING)
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(CHAT, asked(CHAT)))
            await until(lambda: sum(len(engine.received) for engine in engines) == 2)
            client.close()
            await until(lambda: all(engine.num_open == 0 for engine in engines))
            assert it.errors() == {"upstream_reset": 1, "client_gone": 1}
        for engine in engines:
            engine.stop()

    run(scene())


def test_a_client_that_leaves_while_the_engine_is_asked_about_its_model(tmp_path: Path) -> None:
    """When the client leaves, the metadata request for its model is cancelled too."""

    async def scene() -> None:
        [engine], text = await started(writes(then="hang"), options="protocol: kserve")
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post("/v1/completions", b'{"model": "m", "prompt": "hi"}'))
            await until(lambda: engine.received)
            assert engine.received[0].line == "GET /v2/models/m HTTP/1.1"
            client.close()
            await until(lambda: engine.num_open == 0)
            assert it.errors() == {"client_gone": 1}
        engine.stop()

    run(scene())


def test_rules_change_before_a_generation_goes_on(tmp_path: Path) -> None:
    """A generation continues under the rules that it began with; the next one uses the new rules."""
    breaks = asyncio.Event()

    async def wait(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(BEGIN)
        await breaks.wait()
        writer.transport.abort()
        raise ConnectionError

    async def scene() -> None:
        script = first(wait, ENDS)
        engines, text = await started(script, script, routes=RESUMING)
        other = Engine(writes(http(200, WHOLE)))
        await other.start()
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(MESSAGES, asked(MESSAGES)))
            _, headers = await client.head()
            it.plane.use_rules(load(rules(other, options=OPENAI), tmp_path), 2)
            breaks.set()
            body, is_whole = await rest(client, headers)
            assert is_whole, body
            assert other.received == []
            assert (await client.ask(post(MESSAGES, asked(MESSAGES, stream=False)))).status == 200
            assert len(other.received) == 1
        for engine in (*engines, other):
            engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_slow_reader_stops_the_engine_that_goes_on(tmp_path: Path, path: str) -> None:
    """While the client does not read, the engine that continues the generation is paused before it has sent much."""
    piece = chunk(token("x" * 16_000))
    total = 1000
    sent = 0
    is_paused = asyncio.Event()

    async def endless(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        nonlocal sent
        writer.write(STREAM)
        for _ in range(total):
            writer.write(piece)
            sent += 1
            await writer.drain()
        writer.write(chunk(STOP + DONE) + LAST)

    async def breaks(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        writer.write(BEGIN)
        await is_paused.wait()
        writer.transport.abort()
        raise ConnectionError

    async def scene() -> None:
        script = first(breaks, endless)
        engines, text = await started(script, script, routes=RESUMING)
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(path, asked(path)))
            await client.head()
            [connection] = it.plane.connections
            assert isinstance(connection, Http1ServerConnection)
            connection.is_paused = True  # as the event loop sets it when the client's socket is full
            is_paused.set()
            await until(lambda: sent)
            reply = b""
            with contextlib.suppress(TimeoutError):
                while len(reply) < HELD:
                    reply += await asyncio.wait_for(client.reader.read(1 << 20), 0.3)
            assert len(reply) < HELD
            connection.resume_writing()
            while not reply.endswith(b"\r\n" + LAST):
                reply = reply[-16:] + await client.reader.read(1 << 20)
            assert sent == total
        for engine in engines:
            engine.stop()

    run(scene())
