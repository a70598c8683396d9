"""A field for every reply is one line in `reply_fields`: HTTP/1.1 and HTTP/2 send it with each reply."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.dataplane.grpc.peers import OPENING, STREAM, UNARY, Call, GrpcEngine
from tests.dataplane.grpc.stage import RESULT, GrpcStage, grpc_stage, request, response
from tests.dataplane.stage import Engine, ReceivedRequest, get, post, run

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"hello"},"finish_reason":"stop"}]}\n\n'
CHAT = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stream": True}).encode()
INFERRED = b'{"model_name":"m","outputs":[]}'
RULES = """version: 1
engines:
  rest: {{endpoints: ["{rest}"], health: {{interval: 0}}}}
  grpc: {{endpoints: ["{grpc}"], health: {{interval: 0}}}}
  llm: {{protocol: openai, endpoints: ["{llm}"], health: {{interval: 0}}}}
routes:
  - {{name: calls, match: {{model: called}}, engine: grpc}}
  - {{name: chats, match: {{model: chat}}, engine: llm}}
  - {{name: generations, match: {{model: generated}}, engine: llm}}
  - {{name: infers, match: {{model: m}}, engine: rest}}
"""
# Adds a field to the table before the modules that read it are loaded, like an edit of the file.
SCRIPT = """
import sys
from pathlib import Path
from gateway.dataplane.context.reply_fields import EVERY_REPLY
EVERY_REPLY.append((b"x-added", b"1"))
from tests.dataplane.test_reply_fields import print_replies
print_replies(Path(sys.argv[1]))
"""


def test_a_field_for_every_reply(tmp_path: Path) -> None:
    """The field appears once in each reply: an engine's, the gateway's own and errors, whole or streamed, in every
    protocol."""
    reply = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=Path(__file__).parents[2], capture_output=True, text=True
    )
    assert reply.returncode == 0, reply.stderr
    replies = json.loads(reply.stdout)
    assert len(replies) == 17
    assert {name: fields.count("x-added") for name, fields in replies.items()} == dict.fromkeys(replies, 1)


async def answer_infer(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(INFERRED), INFERRED))


async def stream_tokens(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(EVENTS + b"%x\r\n%b\r\n0\r\n\r\n" % (len(TOKEN), TOKEN))


async def answer(call: Call) -> None:
    await call.over()
    call.open()
    await call.send(response() if call.value(":path") == STREAM else RESULT)
    call.end()


async def http1_fields(it: GrpcStage, data: bytes) -> list[str]:
    client = await it.client()
    await client.send(data)
    head = await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 120)
    client.close()
    return [line.partition(b":")[0].decode().lower() for line in head.splitlines()]


async def http2_fields(it: GrpcStage, method: str, path: str, body: bytes) -> list[str]:
    call = (await it.grpc()).request(method, path, ("content-type", "application/json"), ended=not body)
    if body:
        await call.send_raw(body, ended=True)
    return [name for name, _ in (await call.over()).fields]


async def grpc_fields(it: GrpcStage, path: str, message: bytes) -> list[str]:
    call = await (await it.grpc()).ask(message, path=path)
    return [name for name, _ in call.fields]


def print_replies(tmp_path: Path) -> None:
    """Print the names of the fields of each kind of reply, as JSON."""
    found: dict[str, list[str]] = {}
    rest_requests = {
        "relayed": ("POST", "/v2/models/m/infer", b"{}"),
        "converted": ("POST", "/v2/models/called/infer", b'{"inputs":[]}'),
        "local": ("GET", "/v2/health/live", b""),
        "error": ("POST", "/v2/models/unknown/infer", b"{}"),
        "stream": ("POST", "/v1/chat/completions", CHAT),
        "translated stream": ("POST", "/v2/models/generated/generate_stream", b'{"text_input":"hi"}'),
    }
    calls = {
        "relayed": (UNARY, request("called")),
        "converted": (UNARY, request("m")),
        "local": ("/grpc.health.v1.Health/Check", b""),
        "error": (UNARY, request("unknown")),
        "stream": (STREAM, request("called")),
    }

    async def scene() -> None:
        rest, llm, grpc = Engine(answer_infer), Engine(stream_tokens), await GrpcEngine(answer).start()
        await rest.start()
        await llm.start()
        async with grpc_stage(RULES.format(rest=rest.url, grpc=grpc.url, llm=llm.url), tmp_path) as it:
            for name, (method, path, body) in rest_requests.items():
                found[f"http1 {name}"] = await http1_fields(it, post(path, body) if body else get(path))
                found[f"http2 {name}"] = await http2_fields(it, method, path, body)
            for name, (path, message) in calls.items():
                found[f"grpc {name}"] = await grpc_fields(it, path, message)
        rest.stop()
        llm.stop()
        await grpc.stop()

    run(scene())
    print(json.dumps(found))


FORGED = b"X-Pointsman-Reason: forged\r\nx-pointsman-engine: forged\r\nX-POINTSMAN-NEW: forged\r\nx-pointsman: kept\r\n"


async def answer_forged(engine: Engine, received: ReceivedRequest, reader: Any, writer: Any) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (FORGED, len(INFERRED), INFERRED))


async def answer_forged_call(call: Call) -> None:
    await call.over()
    forged = [("x-pointsman-reason", "forged"), ("x-pointsman-engine", "forged"), ("x-pointsman-new", "forged")]
    if call.value("x-refuse"):
        call.refuse(3, "no", *forged)
        return
    call.open([*OPENING, *forged, ("x-pointsman", "kept")])
    await call.send(response() if call.value(":path") == STREAM else RESULT)
    call.end([("grpc-status", "0"), *forged])


def test_an_engine_cannot_send_the_gateways_own_fields(tmp_path: Path) -> None:
    """`x-pointsman-*` of an engine's reply, head or trailers, reaches no client, by any protocol and conversion."""

    async def scene() -> None:
        rest, grpc = Engine(answer_forged), await GrpcEngine(answer_forged_call).start()
        await rest.start()
        found: list[list[tuple[str, str]]] = []
        async with grpc_stage(RULES.format(rest=rest.url, grpc=grpc.url, llm=rest.url), tmp_path) as it:
            for model in ("m", "called"):
                path, body = f"/v2/models/{model}/infer", b'{"inputs":[]}'
                found.append(list((await it.ask(post(path, body))).headers.items()))
                call = (await it.grpc()).request("POST", path, ("content-type", "application/json"))
                await call.send_raw(body, ended=True)
                found.append((await call.over()).fields)
                peer = await it.grpc()
                for rpc in (UNARY, STREAM):
                    reply = await peer.ask(request(model), path=rpc)
                    assert reply.status == 0
                    found.append(reply.fields + reply.trailers)
            refused = await peer.ask(request("called"), metadata=[("x-refuse", "1")])
            assert refused.status == 3
            found.append(refused.fields + refused.trailers)
            reply = await it.ask(post("/v2/models/called/infer", b'{"inputs":[]}', "x-refuse: 1"))
            assert (reply.status, reply.reason) == (400, None)
        assert not [field for fields in found for field in fields if field[1] == "forged"]
        assert [dict(fields).get("x-pointsman-engine") for fields in found] == ["rest"] * 3 + [None] + ["grpc"] * 5
        assert [dict(fields).get("x-pointsman") for fields in found[:2]] == ["kept"] * 2  # a name of the engine's own
        rest.stop()
        await grpc.stop()

    run(scene())
