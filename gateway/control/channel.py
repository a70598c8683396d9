"""The socket pair between the control process and one of its children, from the control process' end.

Messages travel as length-prefixed pickles; only a parent and its own child hold the sockets.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

from gateway.control.messages import Message

_LENGTH = struct.Struct(">I")


def encode(message: Message) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


async def read_messages(reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    """The messages of the other end, until it closes."""
    with suppress(OSError, asyncio.IncompleteReadError):  # the socket of a killed process may be reset
        while True:
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            yield pickle.loads(await reader.readexactly(length))


class ChildProcess:
    """The control process' end: a child and the socket to it.

    `start` starts it; `ended` is done, with the exit status, when the process has ended and its last message is read.
    """

    def __init__(self, received: Callable[[ChildProcess, Message], None], command: Sequence[str]) -> None:
        self._received = received
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ended: asyncio.Task[int] | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def has_exited(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def wait(self) -> None:
        """Return when the process has exited."""
        if self._process is not None:
            await self._process.wait()
        if self.ended is not None:
            await asyncio.wait([self.ended])

    async def start(self, pass_fds: Sequence[int] = ()) -> None:
        """Start the process; it waits for its first message."""
        ours, theirs = socket.socketpair()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                "--control-fd",
                str(theirs.fileno()),
                pass_fds=(theirs.fileno(), *pass_fds),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the supervisor, which drains its workers
            )
        finally:
            theirs.close()
        ours.setblocking(False)
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self.ended = asyncio.get_running_loop().create_task(self._read(reader))

    def send(self, message: Message) -> None:
        """Send a message; one to a process that has exited is lost."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def _read(self, reader: asyncio.StreamReader) -> int:
        assert self._process is not None and self._writer is not None
        async for message in read_messages(reader):
            self._received(self, message)
        status = await self._process.wait()
        self._writer.close()
        return status
