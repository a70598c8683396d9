"""Byte-exact requests and replies of language models, for engines that run a test's script."""

import asyncio
import json
from typing import Any

from tests.dataplane.stage import Client, Engine, ReceivedRequest, Script, rules

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter

OPENAI = "protocol: openai"
RESUMING = "  - {name: all, engine: it, resume: true}\n"

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
LAST = b"0\r\n\r\n"

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: bytes | dict[str, Any]) -> bytes:
    reply = data if isinstance(data, bytes) else json.dumps(data, separators=(",", ":")).encode()
    return b"data: " + reply + b"\n\n"


def _chunk_of(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
    return event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices})


def token(text: str) -> bytes:
    return _chunk_of({"content": text})


COUNTS = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ROLE = _chunk_of({"role": "assistant", "content": ""})
STOP = _chunk_of({}, "stop")
USAGE = event({"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [], "usage": COUNTS})
DONE = event(b"[DONE]")
WHOLE = json.dumps(
    {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": COUNTS,
    }
).encode()


def http(status: int, body: bytes, *fields: bytes) -> bytes:
    """A whole reply."""
    lines = b"".join(field + b"\r\n" for field in fields)
    head = b"HTTP/1.1 %d Whatever\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, lines, len(body)) + body


def asked(path: str, *, stream: bool = True, model: str = "m", **more: Any) -> bytes:
    """The body of a text request."""
    limit = {"max_tokens": 50} if path == MESSAGES else {}
    turns = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": model, **limit, "messages": turns, "stream": stream, **more}).encode()


def writes(*pieces: bytes, then: str = "") -> Script:
    """An engine that answers with these pieces, each in a write of its own, and then does one of: close | reset |
    hang."""

    async def script(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.002)  # so that the gateway usually reads them one by one
        if then == "hang":
            await reader.read()
        elif then == "reset":
            writer.transport.abort()
        elif then == "close":
            writer.close()
        if then:
            raise ConnectionError

    return script


def goes_on(received: ReceivedRequest) -> bool:
    """Whether the request continues an earlier answer."""
    return b'"assistant"' in received.body


def first(script: Script, then: Script) -> Script:
    """One script for new generations, another for continued ones."""

    async def either(engine: Engine, received: ReceivedRequest, reader: Reader, writer: Writer) -> None:
        await (then if goes_on(received) else script)(engine, received, reader, writer)

    return either


async def started(*scripts: Script, options: str = OPENAI, routes: str = "") -> tuple[list[Engine], str]:
    """Engines with these scripts, and the rules that name them as the endpoints of one engine."""
    engines = [Engine(script) for script in scripts]
    for engine in engines:
        await engine.start()
    return engines, rules(*engines, options=options, routes=routes)


async def rest(client: Client, headers: dict[str, str]) -> tuple[bytes, bool]:
    """The body of a reply, and whether it is complete."""
    if "content-length" in headers:
        return await client.reader.readexactly(int(headers["content-length"])), True
    reply = b""
    try:
        while data := await client.chunk():
            reply += data
    except (asyncio.IncompleteReadError, ConnectionError):
        return reply, False
    return reply, True
