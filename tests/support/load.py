"""Users who send requests continuously, each in a session of its own, and the outcome of each request."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

_HEAD = "POST /v2/models/m/infer HTTP/1.1\r\nhost: gateway\r\nx-session-id: {session}\r\ncontent-length: 2\r\n\r\n{{}}"


@dataclass(frozen=True, slots=True)
class Answer:
    """The time of an answer (of `time.monotonic`), and its content."""

    at: float
    session: str
    arm: str
    status: int
    seconds: float

    @property
    def began(self) -> float:
        return self.at - self.seconds


class Load:
    """While the context lasts, these ports get `rate` requests a second from `sessions` sessions."""

    def __init__(
        self, ports: Sequence[int], *, rate: float, sessions: int, seed: int = 1, connections: int = 12
    ) -> None:
        self._ports, self._sessions, self._connections = ports, sessions, connections
        self._pause = connections * len(ports) / rate
        self._random = random.Random(seed)
        self.answers: list[Answer] = []
        self.failures: list[str] = []  # of connections, not of requests
        self._is_over = False
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def since(self, at: float) -> list[Answer]:
        return [answer for answer in self.answers if answer.at >= at]

    async def _run(self) -> None:
        await asyncio.gather(*(self._request(port) for port in self._ports for _ in range(self._connections)))

    async def _request(self, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(self._random.random() * self._pause)
        due = time.monotonic()
        while not self._is_over:
            session = f"user-{self._random.randrange(self._sessions)}"
            began = time.monotonic()
            try:
                writer.write(_HEAD.format(session=session).encode())
                self.answers.append(await _answer(reader, session, began))
            except (OSError, EOFError) as error:  # the gateway is restarting
                self.failures.append(repr(error))
                await asyncio.sleep(0.2)
                try:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    continue
            due = max(due + self._pause, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        writer.close()


async def _answer(reader: asyncio.StreamReader, session: str, began: float) -> Answer:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
    await reader.readexactly(int(fields.get("content-length", 0)))
    now = time.monotonic()
    return Answer(now, session, fields.get("x-pointsman-arm", ""), int(first.split(" ")[1]), now - began)
