"""The socket pair between the control process and one of its children, from both ends.

Messages travel as length-prefixed pickles; only a parent and its own child hold the sockets.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import signal
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress

from gateway.control.messages import Message
from gateway.net.server import loop_factory

_LENGTH = struct.Struct(">I")
_READ_BYTES = 1 << 16


def encode(message: Message) -> bytes:
    """Frame a message for the socket pair."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Splits a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        self._buffer += data
        messages: list[Message] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(bytes(self._buffer[_LENGTH.size : end])))
            del self._buffer[:end]
        return messages


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

    def __repr__(self) -> str:
        return f"<ChildProcess {self.pid}>"

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
        decoder = MessageDecoder()
        with suppress(OSError):  # the socket of a killed process may be reset
            while data := await reader.read(_READ_BYTES):
                for message in decoder.feed(data):
                    self._received(self, message)
        status = await self._process.wait()
        self._writer.close()
        return status


class ControlledProcess:
    """The child's end: handles the control process' messages until it is stopped by one, or by a signal."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.stopping = asyncio.Event()
        self._reader = reader

    async def run(self) -> int:
        """Serve until stopped; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        reading = loop.create_task(self._read())
        await self.stopping.wait()
        reading.cancel()
        await self.close()
        return 0

    async def handle(self, message: Message) -> None:
        """Carry out a message."""
        raise NotImplementedError

    def control_lost(self) -> None:
        """The control process has closed its end."""
        self.stopping.set()

    async def close(self) -> None:
        """End what runs."""
        raise NotImplementedError

    def send(self, message: Message) -> None:
        if not self.writer.is_closing():
            self.writer.write(encode(message))

    async def _read(self) -> None:
        decoder = MessageDecoder()
        with suppress(OSError):
            while data := await self._reader.read(_READ_BYTES):
                for message in decoder.feed(data):
                    await self.handle(message)
        self.control_lost()


def run_child(make: Callable[[asyncio.StreamReader, asyncio.StreamWriter], ControlledProcess], description: str) -> int:
    """The main function of a child, which `--control-fd` hands its end of the socket pair."""
    parser = argparse.ArgumentParser(description=f"{description}; `pointsman serve` starts it.")
    parser.add_argument("--control-fd", type=int, required=True)
    control = socket.socket(fileno=parser.parse_args().control_fd)
    control.setblocking(False)

    async def serve() -> int:
        return await make(*await asyncio.open_connection(sock=control)).run()

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(serve())
