"""How a worker hands its listening sockets to a later gateway of the same user: at a Unix socket in the data folder.

The successor's workers accept on the same sockets, so that no connection that waits in them is lost; then it has the
worker drain.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_log = logging.getLogger("pointsman")

_DRAIN = b"drain"
_MAX_SOCKETS = 200  # the system sends 253 at a time
_MAX_BYTES = 4096
_ANSWER_SECONDS = 2.0


class HandoverPoint:
    """A worker's end: offers `listeners` until it is closed."""

    def __init__(self, listeners: Sequence[int], control_pid: Callable[[], int], drain: Callable[[], None]) -> None:
        """`control_pid` is 0 once the control process is gone."""
        self._listeners = listeners
        self._control_pid = control_pid
        self._drain = drain
        self._path: Path | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, folder: Path) -> None:
        """Nothing is offered where there can be no socket: its path is too long, or its folder cannot be written."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = folder / f"{os.getpid()}.sock"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            path.unlink(missing_ok=True)  # of a process that had this number
            listener.bind(str(path))
            path.chmod(0o600)  # before it listens
            listener.listen()
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            _log.debug("nothing can be handed over at %s: %s", path, error)
            return
        self._path = path
        self._start(self._accept(listener))

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listener:
            while True:
                connection, _ = await loop.sock_accept(listener)
                self._start(self._hand_over(connection))

    async def _hand_over(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setblocking(False)
            text = json.dumps({"pid": os.getpid(), "control_pid": self._control_pid()})
            socket.send_fds(connection, [text.encode()], self._listeners)
            if await asyncio.get_running_loop().sock_recv(connection, len(_DRAIN)) == _DRAIN:
                self._drain()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@dataclass(eq=False, slots=True)
class ForeignWorker:
    """A worker of another gateway: copies of its listening sockets, and the connection to it."""

    pid: int
    control_pid: int  # 0: that is gone
    listeners: tuple[socket.socket, ...]
    connection: socket.socket

    def drain(self) -> None:
        with suppress(OSError):  # it may have ended
            self.connection.sendall(_DRAIN)

    def close(self) -> None:
        for each in (*self.listeners, self.connection):
            each.close()


def find_workers(folder: Path) -> list[ForeignWorker]:
    """The workers that offer their sockets in a folder; blocks while they answer."""
    found = []
    for path in sorted(folder.glob("*.sock")):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(str(path))
            found.append(_received(connection))
        except (OSError, ValueError, KeyError) as error:
            connection.close()
            if isinstance(error, ConnectionRefusedError):
                path.unlink(missing_ok=True)  # of a process that was killed
            elif not isinstance(error, FileNotFoundError):
                _log.warning("worker %s does not hand over its sockets: %s", path.stem, error)
    return found


def _received(connection: socket.socket) -> ForeignWorker:
    """Raises: OSError, ValueError, KeyError."""
    text, descriptors, _, _ = socket.recv_fds(connection, _MAX_BYTES, _MAX_SOCKETS)
    listeners = tuple(socket.socket(fileno=each) for each in descriptors)
    facts = json.loads(text)
    return ForeignWorker(facts["pid"], facts["control_pid"], listeners, connection)
