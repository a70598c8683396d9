"""Requests of three classes at a constant rate, whatever the replies take, and what becomes of each."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

CLASSES = ("urgent", "normal", "batch")
_SHARES = (0.2, 0.3, 0.5)


@dataclass(frozen=True, slots=True)
class Reply:
    """One request: when it was due, in seconds since the start of the load, and how long it took from then."""

    due: float
    seconds: float
    status: int  # 0: none came in time
    level: int  # of CLASSES


@dataclass(slots=True)
class OpenLoop:
    """Sends to a path of one port; a request without an idle connection opens one."""

    port: int
    path: str
    body: Callable[[], bytes]
    patience: float  # seconds
    replies: list[Reply] = field(default_factory=list)
    _idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, phases: list[tuple[float, float]]) -> None:
        """Send through phases of (seconds, rate)."""
        loop = asyncio.get_running_loop()
        start = due = ends = loop.time()
        for seconds, rate in phases:
            ends += seconds
            while (due := due + random.expovariate(rate)) < ends:
                if (pause := due - loop.time()) > 0:
                    await asyncio.sleep(pause)
                self._start(self._send(due, start, random.choices((0, 1, 2), _SHARES)[0]))
            due = ends
        await asyncio.gather(*self._tasks)
        for _, writer in self._idle:
            writer.close()

    def _start(self, sending: Awaitable[None]) -> None:
        task = asyncio.ensure_future(sending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, due: float, start: float, level: int) -> None:
        status, writer = 0, None
        try:
            async with asyncio.timeout_at(due + self.patience):
                if self._idle:
                    reader, writer = self._idle.pop()
                else:
                    reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                body = self.body()
                head = f"POST {self.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                fields = f"x-request-class: {CLASSES[level]}\r\ncontent-length: {len(body)}\r\n\r\n"
                writer.write((head + fields).encode() + body)
                status = await _status(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            if writer is not None:
                writer.transport.abort()
        else:
            self._idle.append((reader, writer))
        self.replies.append(Reply(due - start, asyncio.get_running_loop().time() - due, status, level))


async def _status(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if b"content-length:" in head:
        await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
    else:
        while size := int(await reader.readuntil(b"\r\n"), 16):
            await reader.readexactly(size + 2)
        await reader.readexactly(2)
    return int(head[9:12])


async def capacity(load: OpenLoop, connections: int, seconds: float) -> float:
    """The replies in a second that as many connections as the engine has servers get, each one request at a time."""
    ends = time.monotonic() + seconds

    async def repeat() -> None:
        while time.monotonic() < ends:
            await load._send(asyncio.get_running_loop().time(), 0.0, 0)

    await asyncio.gather(*[repeat() for _ in range(connections)])
    return len(load.replies) / seconds
