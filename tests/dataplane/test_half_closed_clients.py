"""Clients that close their sending half after the request: they may read on, or have left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.dataplane.stage import DEADLINE, OK, Engine, ReceivedRequest, get, post, run, stage, until

ANSWERED = [
    get("/v2/models/m"),
    get("/v2/models/m/ready"),
    get("/v2/models/m/config"),
    get("/v2/models/stats"),
    post("/v2/repository/models/m/load"),
    post("/v2/models/m/infer"),
    post("/v2/models/m/infer") + get("/v2/models/m/stats") + get("/v2"),
]


class Gate:
    """An engine that answers once it may."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.has_lost_client = asyncio.Event()
        self.answers_gets: asyncio.Event | None = None
        self.engine = Engine(self._answer)

    async def _answer(
        self, engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.answers_gets is not None and received.head.startswith(b"GET"):
            await self.answers_gets.wait()
            writer.write(OK)
            return
        waiting = asyncio.ensure_future(self.may_answer.wait())
        ending = asyncio.ensure_future(reader.read(1))
        await asyncio.wait([waiting, ending], return_when=asyncio.FIRST_COMPLETED)
        has_left = ending.done()
        waiting.cancel()
        ending.cancel()
        await asyncio.gather(waiting, ending, return_exceptions=True)
        if has_left:
            self.has_lost_client.set()
        else:
            writer.write(OK)

    @property
    def rules(self) -> str:
        return f"version: 1\nengines: {{a: {{endpoints: ['{self.engine.url}']}}}}\nroutes: [{{name: all, engine: a}}]\n"


@pytest.mark.parametrize("plain", [False, True], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("sent", ANSWERED, ids=lambda sent: sent.split(b" HTTP")[0].decode())
def test_answers(tmp_path: Path, sent: bytes, plain: bool) -> None:
    """Each request that is whole is answered, then the connection closes."""

    async def scene() -> None:
        gate = Gate()
        await gate.engine.start()
        async with stage(gate.rules, tmp_path, limits={"half_close_timeout": 60.0}) as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(sent)
            writer.write_eof()
            await until(lambda: any(getattr(each, "_has_eof", False) for each in it.plane.connections))
            gate.may_answer.set()
            assert (await reader.read()).count(b"HTTP/1.1 200 OK") == sent.count(b" HTTP/1.1\r\n")
            writer.close()
        gate.engine.stop()

    run(scene(), plain=plain)


@pytest.mark.parametrize("path, timeout", [("infer", 0.1), ("infer", 0), ("generate", 60.0), ("generate_stream", 60.0)])
def test_cancellation(tmp_path: Path, path: str, timeout: float) -> None:
    """An inference is cancelled after `half_close_timeout`, a generation at once."""

    async def scene() -> None:
        gate = Gate()
        await gate.engine.start()
        async with stage(gate.rules, tmp_path, limits={"half_close_timeout": timeout}) as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(post(f"/v2/models/m/{path}"))
            await until(lambda: gate.engine.received)
            writer.write_eof()
            assert await reader.read() == b""
            await asyncio.wait_for(gate.has_lost_client.wait(), 120)
            writer.close()
        gate.engine.stop()

    run(scene())


@pytest.mark.parametrize("first", ["/v2/models/m", "/v2"], ids=["relayed", "answered at once"])
@pytest.mark.parametrize(
    "sent, timeout",
    [
        (post("/v2/models/m/infer"), 0.1),
        (post("/v2/models/m/infer"), 0),
        (post("/v2/models/m/generate"), 60.0),
        (post("/v2/models/m/generate")[:-1], 60.0),
        (post("/v2/models/m/generate")[:20], 60.0),
    ],
    ids=["infer", "infer without time", "generate", "a part of a body", "a part of a head"],
)
def test_cancellation_of_waiting_requests(tmp_path: Path, first: str, sent: bytes, timeout: float) -> None:
    """A request that begins after the client has closed its sending half has the bounds of one that is under way then;
    one that will never be complete is dropped."""

    async def scene() -> None:
        gate = Gate()
        gate.answers_gets = asyncio.Event()
        await gate.engine.start()
        async with stage(gate.rules, tmp_path, limits={"half_close_timeout": timeout}) as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(get(first) + sent)
            writer.write_eof()
            if first != "/v2":
                await until(lambda: any(getattr(each, "_has_eof", False) for each in it.plane.connections))
            gate.answers_gets.set()
            assert (await asyncio.wait_for(reader.read(), DEADLINE)).count(b"HTTP/1.1 ") == 1
            await until(lambda: not it.plane.connections)
            writer.close()
        gate.engine.stop()

    run(scene())
