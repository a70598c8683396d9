"""One worker as its supervisor sees it: a child process and the socket pair between them."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from gateway.control_messages import Decoder, Message, encode

COMMAND = (sys.executable, "-m", "gateway.worker")


class WorkerProcess:
    """Started by `start`; `ended` is done, with the exit status, when the process is gone and all it said is read."""

    def __init__(self, heard: Callable[[WorkerProcess, Message], None], command: Sequence[str] = COMMAND) -> None:
        self._heard = heard
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.ended: asyncio.Task[int] | None = None

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid}>"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def is_gone(self) -> bool:
        return self._process is None or self._process.returncode is not None

    async def gone(self) -> None:
        """Return when the process is, whether or not anybody listens to it."""
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
        self.ended = asyncio.get_running_loop().create_task(self._watch(reader))

    def say(self, message: Message) -> None:
        """Send a message; one to a process that is gone is lost."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(encode(message))

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)

    async def _watch(self, reader: asyncio.StreamReader) -> int:
        assert self._process is not None and self._writer is not None
        decoder = Decoder()
        try:
            while data := await reader.read(1 << 16):
                for message in decoder.feed(data):
                    self._heard(self, message)
        except OSError:
            pass  # a process that died does not close its end politely
        status = await self._process.wait()
        self._writer.close()
        return status
