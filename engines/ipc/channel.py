"""The host's end of a channel to an instance: non-blocking, with callbacks."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Any

from engines.ipc.arena import Arena, Mapping
from engines.ipc.protocol import FrameReader, Message, encode

READ_BYTES = 1 << 16
# The capacity of a pipe where the system allows it: several small tensors.
PIPE_BYTES = 1 << 18


def open_pipe() -> tuple[int, int]:
    """A pipe for messages: the read end, the write end. In place of a socket pair: there each read wakes the writer to
    report free space."""
    ends = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the user's limit of pipe memory
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ends


class Channel:
    """Messages to and from one instance. `on_message` gets each message; the end of the stream is reported by the
    process."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outgoing: int,
        incoming: int,
        arena: Arena,
        mapping: Mapping,
        on_message: Callable[[Message], None],
    ) -> None:
        os.set_blocking(outgoing, False)
        os.set_blocking(incoming, False)
        self.arena = arena
        self.mapping = mapping
        self._loop = loop
        self._outgoing = outgoing
        self._incoming = incoming
        self._frames = FrameReader()
        self._unsent = bytearray()
        self._on_message = on_message
        self.is_open = True
        loop.add_reader(incoming, self._read)

    def send(self, kind: int, *rest: Any) -> None:
        """Send a message now or when the pipe has room, with the released blocks."""
        if not self.is_open:
            return
        freed = self.mapping.take_freed() if self.mapping.freed else ()
        data = encode((kind, freed, *rest))
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = os.write(self._outgoing, data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the instance has ended, as its process reports
            return
        if sent < len(data):
            self._unsent += data[sent:]
            self._loop.add_writer(self._outgoing, self._write)

    def drain(self) -> None:
        """Read what the instance has sent before its end."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._incoming)
            self._loop.remove_writer(self._outgoing)
            os.close(self._incoming)
            os.close(self._outgoing)
            self.arena.close()
            self.mapping.close()

    def _read(self) -> bool:
        """Read once; whether there was data."""
        try:
            data = os.read(self._incoming, READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if self.is_open:
                self._loop.remove_reader(self._incoming)
            return False
        for message in self._frames.feed(data):
            for offset in message[1]:
                self.arena.free(offset)
            self._on_message(message)
            if not self.is_open:
                return False
        return True

    def _write(self) -> None:
        try:
            sent = os.write(self._outgoing, self._unsent)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._outgoing)
