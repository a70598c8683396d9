"""The host's end of a channel to an instance: never blocks, answers by calling back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from engines.ipc.arena import Arena, Mapping
from engines.ipc.frames import FrameReader, Message, encode

READ_BYTES = 1 << 18


class Channel:
    """Messages to and from one instance. `on_message` gets each that arrives; the end of the stream is told by the
    process's own end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        stream: socket.socket,
        arena: Arena,
        mapping: Mapping,
        on_message: Callable[[Message], None],
    ) -> None:
        stream.setblocking(False)
        self.arena = arena
        self.mapping = mapping
        self._loop = loop
        self._stream = stream
        self._descriptor = stream.fileno()
        self._frames = FrameReader()
        self._outgoing = bytearray()
        self._on_message = on_message
        self.is_open = True
        loop.add_reader(self._descriptor, self._read)

    def send(self, kind: int, *rest: Any) -> None:
        """Send a message, now or as soon as there is room; blocks used no more are told along."""
        if not self.is_open:
            return
        freed = self.mapping.take_freed() if self.mapping.freed else ()
        data = encode((kind, freed, *rest))
        if self._outgoing:
            self._outgoing += data
            return
        try:
            sent = self._stream.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # the instance is gone, which its process tells
            return
        if sent < len(data):
            self._outgoing += data[sent:]
            self._loop.add_writer(self._descriptor, self._write)

    def drain(self) -> None:
        """Take what the other side has sent before its end."""
        while self.is_open and self._read():
            pass

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            self._stream.close()
            self.arena.close()
            self.mapping.close()

    def _read(self) -> bool:
        """Whether there was anything."""
        try:
            data = self._stream.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if self.is_open:
                self._loop.remove_reader(self._descriptor)
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
            sent = self._stream.send(self._outgoing)
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._outgoing)
        del self._outgoing[:sent]
        if not self._outgoing:
            self._loop.remove_writer(self._descriptor)
