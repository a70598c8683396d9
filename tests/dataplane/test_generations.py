"""Language-model requests that pass through: how they begin, how they end, and how they are counted."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from tests.dataplane.generating import (
    CHAT,
    DONE,
    LAST,
    MESSAGES,
    OPENAI,
    ROLE,
    STOP,
    STREAM,
    UNTIL_CLOSE,
    USAGE,
    WHOLE,
    asked,
    chunk,
    event,
    http,
    rest,
    started,
    token,
    writes,
)
from tests.dataplane.stage import Stage, post, run, stage, until

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

BEGIN = STREAM + chunk(ROLE + token("a"))


async def ask(it: Stage, path: str, body: bytes, *fields: str) -> tuple[int, dict[str, str], bytes, bool]:
    """The status, fields and body of a reply, and whether it is complete."""
    client = await it.client()
    await client.send(post(path, body, *fields))
    status, headers = await client.head()
    return status, headers, *await rest(client, headers)


ENDS = {
    "whole": [BEGIN, chunk(STOP), chunk(DONE), LAST],
    "all at once": [BEGIN + chunk(STOP + USAGE + DONE) + LAST],
    "read in three": [BEGIN, b"%x\r\n" % len(DONE) + DONE[:10], DONE[10:] + b"\r\n", LAST],
    "chunks amid an event": [BEGIN, chunk(DONE[:9]), chunk(DONE[9:11]), chunk(DONE[11:]), LAST],
    "usage amid chunks": [BEGIN, chunk(STOP), chunk(USAGE[:-20]), chunk(USAGE[-20:]), LAST],
    "a reason amid chunks": [BEGIN, chunk(STOP[:-20]), chunk(STOP[-20:]), chunk(b": bye\n\n"), LAST],
    "CRLF": [STREAM + chunk((ROLE + token("a")).replace(b"\n", b"\r\n")), chunk(DONE.replace(b"\n", b"\r\n")), LAST],
    "trailers": [BEGIN, chunk(STOP), b"0\r\nX-Took: 1\r\n\r\n"],
    "by closing": [UNTIL_CLOSE, ROLE, token("a") + STOP[:-20], STOP[-20:], DONE],
}


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("pieces", ENDS.values(), ids=ENDS)
def test_a_stream_that_has_ended_is_whole(tmp_path: Path, pieces: list[bytes], path: str) -> None:
    """A generation that ended well is complete for the client, however the engine splits and frames it."""

    async def scene() -> None:
        closes = pieces[0].startswith(UNTIL_CLOSE)
        [engine], text = await started(writes(*pieces, then="close" if closes else ""))
        async with stage(text, tmp_path) as it:
            status, _, body, is_whole = await ask(it, path, asked(path))
            assert (status, is_whole) == (200, True), body
            assert b'"error"' not in body
            assert it.errors() == {}
        engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    "pieces",
    [[BEGIN, LAST], [BEGIN + LAST], [BEGIN, chunk(token("[DONE")), LAST], [UNTIL_CLOSE + ROLE + token("a")]],
    ids=["last chunk", "at once", "words", "closed"],
)
def test_a_stream_that_stops_short_is_not_whole(tmp_path: Path, pieces: list[bytes], path: str) -> None:
    """A reply that ends before its generation does gets an error event and no last chunk."""

    async def scene() -> None:
        [engine], text = await started(writes(*pieces, then="close"))
        async with stage(text, tmp_path) as it:
            status, _, body, is_whole = await ask(it, path, asked(path))
            assert (status, is_whole) == (200, False)
            assert b'"error"' in body.split(b"\n\n")[-2]
            assert it.errors() == {"upstream_reset": 1}
        engine.stop()

    run(scene())


@pytest.mark.parametrize("size", [1, 7, 60])
def test_tokens_are_counted_however_they_are_cut(tmp_path: Path, size: int) -> None:
    """Usage is read from a stream whose chunks split its events."""
    message = b": ping\n\n" + ROLE + token("h\u00e9") + STOP + USAGE + DONE

    async def scene() -> None:
        cut = b"".join(chunk(message[at : at + size]) for at in range(0, len(message), size))
        [engine], text = await started(writes(STREAM, cut, LAST))
        async with stage(text, tmp_path) as it:
            _, _, body, is_whole = await ask(it, CHAT, asked(CHAT))
            assert (body, is_whole) == (message, True)
            [tokens] = [series.tokens for series in it.plane.metrics.by_key.values() if series.tokens]
            assert (tokens.prompt, tokens.completion) == (3, 2)
        engine.stop()

    run(scene())


def test_a_compressed_stream_passes_unread(tmp_path: Path) -> None:
    """A stream that the engine compresses passes through unparsed: it is neither held back nor treated as broken."""
    packed = gzip.compress(ROLE + token("a") + STOP + DONE)
    head = STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")

    async def scene() -> None:
        [engine], text = await started(writes(head + chunk(packed[:20]), chunk(packed[20:]), LAST))
        async with stage(text, tmp_path) as it:
            status, headers, body, is_whole = await ask(it, CHAT, asked(CHAT), "Accept-Encoding: gzip")
            assert (status, headers["content-encoding"], is_whole) == (200, "gzip", True)
            assert gzip.decompress(body).endswith(DONE)
        engine.stop()

    run(scene())


@pytest.mark.parametrize(
    ("status", "pieces"), [(500, [b"out of ", b"memory"]), (200, [ROLE, USAGE])], ids=["failure", "nothing said"]
)
def test_a_stream_without_a_token_ends(tmp_path: Path, status: int, pieces: list[bytes]) -> None:
    """An event stream that ends by closing before its first token, while the gateway holds it back, is complete for the
    client."""

    async def scene() -> None:
        head = UNTIL_CLOSE.replace(b"200", b"%d" % status)
        [engine], text = await started(writes(head, *pieces, then="close"))
        async with stage(text, tmp_path) as it:
            reply, _, body, is_whole = await ask(it, CHAT, asked(CHAT))
            assert (reply, body, is_whole) == (status, b"".join(pieces), True)
        engine.stop()

    run(scene())


def test_what_only_mentions_errors_is_held(tmp_path: Path) -> None:
    """A first event that contains `error: null`, as in OpenAI's responses, does not start the reply: another endpoint
    may still be tried."""
    created = event({"type": "response.created", "response": {"id": "r", "error": None}})
    ended = event({"type": "response.completed", "response": {"id": "r"}})

    async def scene() -> None:
        bad = writes(STREAM + chunk(created), then="reset")
        good = writes(STREAM + chunk(created + ended) + LAST)
        options = OPENAI + "\n    dialects: [responses]\n    balance: round_robin"
        engines, text = await started(bad, good, options=options)
        async with stage(text, tmp_path) as it:
            body = json.dumps({"model": "m", "input": "hi", "stream": True}).encode()
            for _ in range(2):
                status, _, _, is_whole = await ask(it, "/v1/responses", body)
                assert (status, is_whole) == (200, True)
            assert it.errors() == {}
        for engine in engines:
            engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_tries_are_read_each_in_its_own_way(tmp_path: Path, path: str) -> None:
    """The framing of a failed try's reply does not affect how the next try's reply is read."""

    async def scene() -> None:
        whole = http(200, WHOLE.replace(b"hello", b"hello" * 200))
        options = OPENAI + "\n    balance: round_robin"
        bad, good = writes(STREAM + chunk(ROLE), then="reset"), writes(whole[:200], whole[200:])
        engines, text = await started(bad, good, options=options)
        async with stage(text, tmp_path) as it:
            for _ in range(2):
                status, _, body, _ = await ask(it, path, asked(path, stream=False))
                assert (status, b"hello" in body) == (200, True), body
            assert engines[0].received
        for engine in engines:
            engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_no_token_in_time(tmp_path: Path, path: str) -> None:
    """A reply that brings no token within the timeout gets 504, though its head has arrived."""

    async def scene() -> None:
        held = writes(STREAM + chunk(ROLE), then="hang")
        [engine], text = await started(held, options=OPENAI + "\n    timeout: 50ms")
        async with stage(text, tmp_path) as it:
            status, headers, _, _ = await ask(it, path, asked(path))
            assert (status, headers["x-pointsman-reason"]) == (504, "deadline")
            await until(lambda: engine.num_open == 0)
        engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_all_say_that_they_cannot(tmp_path: Path, path: str) -> None:
    """When every endpoint answers 503, the client gets the last one's reply."""

    async def scene() -> None:
        full = writes(http(503, b'{"error":{"message":"full up"}}', b"Retry-After: 7"))
        engines, text = await started(full, full)
        async with stage(text, tmp_path) as it:
            status, headers, body, _ = await ask(it, path, asked(path))
            assert (status, headers["retry-after"]) == (503, "7")
            assert b"full up" in body
            assert [len(engine.received) for engine in engines] == [1, 1]
        for engine in engines:
            engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize(
    "pieces",
    [[], [STREAM + chunk(ROLE)], [BEGIN], [http(200, WHOLE)[:-9]]],
    ids=["asked", "held", "amid the stream", "amid a whole reply"],
)
def test_a_client_that_leaves_stops_the_engine(tmp_path: Path, path: str, pieces: list[bytes]) -> None:
    """When the client leaves, at any stage, the engine's connection is closed at once, and the error is counted
    once."""

    async def scene() -> None:
        [engine], text = await started(writes(*pieces, then="hang"))
        async with stage(text, tmp_path) as it:
            client = await it.client()
            await client.send(post(path, asked(path)))
            await until(lambda: engine.received)
            if pieces == [BEGIN]:
                await client.head()
            client.close()
            await until(lambda: engine.num_open == 0)
            assert it.errors() == {"client_gone": 1}
        engine.stop()

    run(scene())


def test_names_that_nobody_can_pass_on(tmp_path: Path) -> None:
    """An error does not repeat a model name of megabytes; a body that must be rewritten, but cannot be, is refused."""
    deep = b"[" * 400 + b"]" * 400

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)))
        async with stage(text, tmp_path) as it:
            for body in (asked(CHAT, model="m" * 3_000_000), b'{"model":"m","Model":"n","x":' + deep + b"}"):
                reply = await it.ask(post(CHAT, body))
                assert (reply.status, reply.reason) == (400, "bad_request")
                assert len(reply.body) < 500
            assert engine.received == []
        engine.stop()

    run(scene())


def test_one_length_reaches_the_engine(tmp_path: Path) -> None:
    """A rewritten body is sent with its own length alone, even if a rule matches the client's length."""
    routes = "  - {name: odd, match: {header: {content-length: '1'}}, engine: it}\n  - {name: all, engine: it}\n"

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)), routes=routes)
        async with stage(text, tmp_path) as it:
            body = b'{"Model": "n", "model": "m", "messages": []}'
            assert (await it.ask(post(CHAT, body))).status == 200
            [received] = engine.received
            assert received.value("content-length") == str(len(b'{"messages":[],"model":"m"}'))
            assert json.loads(received.body) == {"model": "m", "messages": []}
        engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_body_cut_off_amid_its_compression(tmp_path: Path, path: str) -> None:
    """A truncated compressed body is refused even if its text can be read; so is one with trailing data."""

    async def scene() -> None:
        [engine], text = await started(writes(http(200, WHOLE)))
        async with stage(text, tmp_path) as it:
            packed = gzip.compress(asked(path, stream=False))
            assert (await it.ask(post(path, packed, "Content-Encoding: gzip"))).status == 200
            for spoilt in (packed[:-4], packed + packed):
                reply = await it.ask(post(path, spoilt, "Content-Encoding: gzip"))
                assert (reply.status, reply.reason) == (400, "bad_request")
            assert len(engine.received) == 1
        engine.stop()

    run(scene())


@pytest.mark.parametrize("size", [200, 5000])
def test_a_response_whose_last_event_is_long(tmp_path: Path, size: int) -> None:
    """A response whose last event repeats all of its text is complete, also when the last chunk comes separately."""
    delta = event({"type": "response.output_text.delta", "delta": "hello"})
    last = event({"type": "response.completed", "response": {"output": ["x" * size]}})
    pieces = [STREAM + chunk(delta), chunk(delta), chunk(last), LAST]

    async def scene() -> None:
        [engine], text = await started(writes(*pieces), options=f"{OPENAI}\n    dialects: [responses]")
        async with stage(text, tmp_path) as it:
            body = b'{"model": "m", "input": "hi", "stream": true}'
            status, _, reply, is_whole = await ask(it, "/v1/responses", body)
            assert (status, is_whole, it.errors()) == (200, True, {}), reply
            assert reply.endswith(last)
        engine.stop()

    run(scene())
