"""Rules that ask for the body never let a request pass that they could not read and its engine can."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import brotli
import pytest

from tests.dataplane.grpc.peers import STREAM, UNARY
from tests.dataplane.grpc.stage import grpc_stage, request
from tests.dataplane.stage import Engine, Reply, Stage, post, run, stage

RULES = """version: 1
engines:
  denying: {{endpoints: ["{url}"], health: {{interval: 0}}}}
  serving: {{endpoints: ["{url}"], health: {{interval: 0}}}}
  llm: {{protocol: openai, endpoints: ["{url}"], health: {{interval: 0}}}}
routes:
  - {{name: denied, match: {{model: m, parameter: {{level: high}}}}, engine: denying}}
  - {{name: tensors, match: {{model: t, input: {{name: x, rank: 1}}}}, engine: denying}}
  - {{name: images, match: {{model: chat, has_image: true}}, engine: llm}}
  - {{name: chats, match: {{protocol: openai}}, engine: llm}}
  - {{name: rest, engine: serving}}
"""
INFER = "/v2/models/m/infer"
HIGH = b'{"parameters":{"level":"high"},"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.5]}]}'
NAN = HIGH.replace(b"1.5", b"NaN")


def coded(body: bytes, coding: str) -> bytes:
    return post(INFER, body, f"Content-Encoding: {coding}")


# Engines read these: the rule must, too.
READ = {
    "plain": post(INFER, HIGH),
    "NaN": post(INFER, NAN),
    "Infinity": post(INFER, HIGH.replace(b"1.5", b"-Infinity")),
    "NaN first": post(INFER, b'{"x":NaN,' + HIGH[1:]),
    "BOM": post(INFER, b"\xef\xbb\xbf" + HIGH),
    "gzip": coded(gzip.compress(HIGH), "gzip"),
    "gzip, NaN": coded(gzip.compress(NAN), "GZip"),
    "gzip of two members": coded(gzip.compress(HIGH[:40]) + gzip.compress(HIGH[40:]), "gzip"),
    "br": coded(brotli.compress(HIGH), "br"),
    "identity": coded(HIGH, "identity"),
    "identity, gzip": coded(gzip.compress(HIGH), "identity, gzip"),
    "identity and gzip": post(INFER, gzip.compress(HIGH), "content-encoding: identity", "Content-Encoding: gzip"),
    "with binary data": post(INFER, HIGH + b"\0\0\0\0", f"Inference-Header-Content-Length: {len(HIGH)}"),
    "generate": post("/v2/models/m/generate", b'{"text_input":"a","level":"high","x":NaN}'),
}
# The rule cannot be sure of these: they are refused.
REFUSED = {
    "no JSON": (400, post(INFER, HIGH[:-1])),
    "UTF-16": (400, post(INFER, HIGH.decode().encode("utf-16"))),
    "lone surrogate": (400, post(INFER, HIGH.replace(b'"x"', b'"\\ud800"'))),
    "lone surrogate, NaN": (400, post(INFER, NAN.replace(b'"x"', b'"\\ud800"'))),
    "no UTF-8": (400, post(INFER, HIGH.replace(b'"x"', b'"\xff"'))),
    "parameters twice": (400, post(INFER, HIGH[:-1] + b',"parameters":{"level":"low"}}')),
    "level twice": (400, post(INFER, HIGH.replace(b'"high"', b'"high","l\\u0065vel":"low"'))),
    "zstd": (415, coded(HIGH, "zstd")),
    "two codings": (415, coded(gzip.compress(gzip.compress(HIGH)), "gzip, gzip")),
    "br, broken": (400, coded(brotli.compress(HIGH)[:-2], "br")),
    "gzip, broken": (400, coded(gzip.compress(HIGH)[:-2], "gzip")),
    "gzip, two documents": (400, coded(gzip.compress(HIGH) + gzip.compress(b'{"a":1}'), "gzip")),
    "short length": (400, post(INFER, HIGH, "Inference-Header-Content-Length: 10")),
    "long length": (400, post(INFER, HIGH, "Inference-Header-Content-Length: 1000")),
    "signed length": (400, post(INFER, HIGH, f"Inference-Header-Content-Length: +{len(HIGH)}")),
    "length 0": (400, post(INFER, HIGH, "Inference-Header-Content-Length: 0")),
    "a list": (400, post(INFER, b"[%b]" % HIGH)),
    "inputs of another shape": (400, post("/v2/models/t/infer", HIGH.replace(b"[1]", b'"1"'))),
    "too long": (413, coded(gzip.compress(HIGH + b" " * 100_000), "gzip")),
    "too long, br": (413, coded(brotli.compress(HIGH + b" " * 100_000), "br")),
}


def test_what_engines_read_is_read(tmp_path: Path) -> None:
    """The rule finds its parameter in each form that engines read, whole or in pieces."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            for name, asked in READ.items():
                assert (await it.ask(asked)).headers["x-pointsman-route"] == "denied", name
                client = await it.client()
                await client.send(asked[:-7])
                await client.send(asked[-7:])
                assert (await client.reply()).headers["x-pointsman-route"] == "denied", name
        engine.stop()

    run(scene())


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A request whose body a rule needs and cannot read reaches no engine; a model that no such rule is about does."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path, limits={"max_body_bytes": 50_000}) as it:
            for name, (status, asked) in REFUSED.items():
                reply = await it.ask(asked)
                assert reply.status == status, (name, reply)
                assert json.loads(reply.body)["error"], name
            assert not engine.received
            assert (await it.ask(post("/v2/models/free/infer", b"no JSON"))).status == 200
        engine.stop()

    run(scene())


DOUBLED = HIGH[:-1] + b',"x":1,"x":2}'
# With Inference-Header-Content-Length: 0, which Triton alone knows: other engines read the JSON in these.
RAW = {
    "JSON": (HIGH, ""),
    "BOM": (b"\xef\xbb\xbf" + HIGH, ""),
    "UTF-16": (HIGH.decode().encode("utf-16"), ""),
    "lone surrogate": (HIGH.replace(b'"x"', b'"\\ud800"'), ""),
    "a key twice": (DOUBLED, ""),
    "no inputs": (b'{"parameters":{"level":"high"}}', ""),
    "gzip": (gzip.compress(DOUBLED), "gzip"),
    "a coding that the gateway does not know": (HIGH, "zstd"),
    "a raw tensor": (b"\0\0\0\0", ""),
}


async def in_pieces(it: Stage, sent: list[bytes]) -> Reply:
    client = await it.client()
    for piece in sent:
        await client.send(piece)
        await asyncio.sleep(0)
    return await client.reply()


def test_a_raw_binary_request_is_refused_where_rules_need_its_json(tmp_path: Path) -> None:
    """The error names the route and what it needs, whether the body comes whole, in segments or in chunks; generate,
    where Triton ignores the field, is refused, too. Other routes take raw binary requests."""
    needs = "; route 'denied' needs to read: parameter level"

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            for name, (body, coding) in RAW.items():
                for length in ("0", "0" * 12):
                    fields = [f"Inference-Header-Content-Length: {length}"]
                    fields += [f"Content-Encoding: {coding}"] if coding else []
                    whole = post(INFER, body, *fields)
                    head = whole[: -len(body)]
                    chunked = head.replace(
                        b"Content-Length: %d\r\n\r\n" % len(body), b"Transfer-Encoding: chunked\r\n\r\n"
                    )
                    chunks = [b"1\r\n%b\r\n" % body[:1], b"%x\r\n%b\r\n0\r\n\r\n" % (len(body) - 1, body[1:])]
                    forms = [
                        [whole],
                        [head, body],
                        [head + body[:1], body[1:]],
                        [chunked, *chunks],
                        [chunked + chunks[0], chunks[1]],
                    ]
                    for sent in forms:
                        reply = await in_pieces(it, sent)
                        assert (reply.status, reply.reason) == (400, "bad_request"), (name, sent, reply)
                        assert json.loads(reply.body)["error"].endswith(needs), (name, sent)
            raw = "Inference-Header-Content-Length: 0"
            reply = await it.ask(post("/v2/models/t/infer", b"\0\0\0\0", raw))
            assert json.loads(reply.body)["error"].endswith("; route 'tensors' needs to read: input")
            reply = await it.ask(post("/v2/models/m/generate", b'{"text_input":"a","level":"high"}', raw))
            assert (reply.status, needs in json.loads(reply.body)["error"]) == (400, True)
            assert not engine.received
            reply = await it.ask(post("/v2/models/free/infer", b"\0\0\0\0", raw))
            assert reply.headers["x-pointsman-route"] == "rest" and engine.received[0].body == b"\0\0\0\0"
        async with stage(RULES.format(url=engine.url), tmp_path, name_decision=False) as it:
            reply = await it.ask(post(INFER, HIGH, raw))
            assert (reply.status, b"denied" in reply.body) == (400, False)
        engine.stop()

    run(scene())


def test_a_raw_binary_request_by_http2(tmp_path: Path) -> None:
    """The same over HTTP/2, with the body in one frame or several."""

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(RULES.format(url=engine.url), tmp_path) as it:
            client = await it.grpc()
            for name, (body, coding) in RAW.items():
                more = [("content-encoding", coding)] if coding else []
                for pieces in ([body], [body[:1], body[1:]]):
                    call = client.request("POST", INFER, ("inference-header-content-length", "0"), *more)
                    for at, piece in enumerate(pieces, 1):
                        await call.send_raw(piece, ended=at == len(pieces))
                    await call.over()
                    assert call.value(":status") == "400", name
            assert not engine.received
        engine.stop()

    run(scene())


def test_chats(tmp_path: Path) -> None:
    """The same of a chat whose images a rule asks for."""
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    turns = {"model": "chat", "messages": [{"role": "user", "content": [image]}]}
    chat = json.dumps(turns).encode()

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with stage(RULES.format(url=engine.url), tmp_path) as it:
            for body in (chat, chat[:-1] + b',"top_p":NaN}', b"\xef\xbb\xbf" + chat):
                reply = await it.ask(post("/v1/chat/completions", body))
                assert reply.headers["x-pointsman-route"] == "images", body
            engine.received.clear()
            for body in (chat[:-1] + b',"messages":[]}', chat[:-1] + b',"user":"\\ud800"}', chat[:-1]):
                reply = await it.ask(post("/v1/chat/completions", body))
                assert (reply.status, reply.reason) == (400, "bad_request"), body
                assert json.loads(reply.body)["error"]["type"] == "invalid_request_error"
            assert not engine.received
        engine.stop()

    run(scene())


@pytest.mark.parametrize("path", [UNARY, STREAM])
def test_grpc(tmp_path: Path, path: str) -> None:
    """A message whose tensors cannot be read is INVALID_ARGUMENT."""
    malformed: Any = request("m") + b"\x2a\x03\x0a\x05x"  # an input whose name is longer than the input

    async def scene() -> None:
        engine = Engine()
        await engine.start()
        async with grpc_stage(RULES.format(url=engine.url), tmp_path) as it:
            reply = await (await it.grpc()).ask(malformed, path=path)
            if path == UNARY:
                assert (reply.status, reply.value("x-pointsman-reason")) == (3, "bad_request")
            else:
                assert b"malformed" in reply.messages[0] or b"message" in reply.messages[0]
            assert not engine.received
        engine.stop()

    run(scene())
