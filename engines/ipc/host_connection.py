"""An instance's end of its channel to the host. Reads block; a thread that waits reads for all threads.

The thread that runs the model reads while it is idle. While it is busy, a thread of the model that waits for a reply
reads instead. A dedicated reader thread would cost every message a switch of threads.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from engines.core.datatypes import Array
from engines.core.errors import EngineError, unavailable
from engines.ipc import protocol
from engines.ipc.arena import ArenaFullError
from engines.ipc.arrays import ArrayStore
from engines.ipc.protocol import FrameReader, Message, encode, unpack_error

READ_BYTES = 1 << 16


class HostGoneError(Exception):
    """The host has closed the channel, or has ended."""


class HostConnection:
    """Messages of one instance."""

    def __init__(self, incoming: int, outgoing: int, arrays: ArrayStore) -> None:
        """The pipes from the host and to it, both of which block."""
        self.arrays = arrays
        self._incoming = incoming
        self._outgoing = outgoing
        self._poll = select.poll()
        self._poll.register(incoming, select.POLLIN)
        self._frames = FrameReader()
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._num_waiting = 0
        self._is_reading = False
        self._work: deque[Message] = deque()
        self._answers: dict[int, deque[Message]] = {}
        self._cancelled: set[int] = set()
        self._on_cancel: dict[int, Callable[[], None]] = {}
        self._last_number = 0

    def send(self, kind: int, *rest: Any) -> None:
        """Send a message, with the released blocks. Raises: HostGoneError."""
        data = encode((kind, self.arrays.take_freed(), *rest))
        try:
            with self._sending:
                sent = os.write(self._outgoing, data)
                while sent < len(data):
                    sent += os.write(self._outgoing, memoryview(data)[sent:])
        except OSError as error:
            raise HostGoneError from error

    def next_work(self) -> Message:
        """Wait for the next message with work. Raises: HostGoneError."""
        with self._lock:
            while not self._work:
                self._read_or_wait()
            return self._work.popleft()

    def is_cancelled(self, request: int) -> bool:
        if request not in self._cancelled:
            with self._lock:
                if not self._is_reading:
                    self._read_what_is_there()
        return request in self._cancelled

    def when_cancelled(self, request: int, callback: Callable[[], None]) -> None:
        """Call `callback` once if the client cancels this request; now, if it has. The thread that reads calls it with
        the lock held: it must be quick and must not use this connection."""
        with self._lock:
            if request in self._cancelled:
                callback()
            else:
                self._on_cancel[request] = callback

    def forget(self, request: int) -> None:
        if self._cancelled:
            self._cancelled.discard(request)
        if self._on_cancel:
            self._on_cancel.pop(request, None)

    def open_number(self) -> int:
        """A number for a request to the host, under which its replies are stored."""
        with self._lock:
            self._last_number += 1
            self._answers[self._last_number] = deque()
            return self._last_number

    def next_answer(self, number: int) -> Message:
        """Wait for the next reply to a request. Raises: HostGoneError."""
        with self._lock:
            answers = self._answers[number]
            while not answers:
                self._read_or_wait()
            return answers.popleft()

    def close_number(self, number: int) -> None:
        """Drop further replies."""
        with self._lock:
            self._answers.pop(number, None)

    def _read_or_wait(self) -> None:
        """With the lock held: read, or wait for the thread that reads."""
        if self._is_reading:
            self._num_waiting += 1
            try:
                self._changed.wait()
            finally:
                self._num_waiting -= 1
            return
        self._is_reading = True
        self._lock.release()
        data = b""
        try:
            data = os.read(self._incoming, READ_BYTES)
        except OSError:
            pass
        finally:
            self._lock.acquire()
            self._is_reading = False
            if self._num_waiting:
                self._changed.notify_all()
        self._take(data)

    def _read_what_is_there(self) -> None:
        if not self._poll.poll(0):
            return
        try:
            data = os.read(self._incoming, READ_BYTES)
        except OSError:
            data = b""
        self._take(data)
        if self._num_waiting:
            self._changed.notify_all()

    def _take(self, data: bytes) -> None:
        if not data:
            raise HostGoneError
        for message in self._frames.feed(data):
            if message[1]:
                self.arrays.free(message[1])
            kind = message[0]
            if kind == protocol.CANCEL:
                self._cancelled.add(message[2])
                if (callback := self._on_cancel.pop(message[2], None)) is not None:
                    callback()
            elif kind in (protocol.ANSWER, protocol.RESULT):
                if message[2] in self._answers:
                    self._answers[message[2]].append(message)
                elif kind == protocol.ANSWER and message[3]:
                    for output in message[3]:
                        self.arrays.drop(output)
            elif kind != protocol.FREED:
                self._work.append(message)


# Of another model: outputs by name, their datatypes, parameters, an error, and whether it is the last reply.
HostReply = tuple[dict[str, Array], dict[str, str], dict[str, Any], EngineError | None, bool]


class HostClient:
    """The host's services for one instance; any thread may call."""

    def __init__(self, connection: HostConnection) -> None:
        self._connection = connection

    def infer(
        self,
        model: str,
        version: str,
        inputs: list[tuple[str, str, Array]],
        outputs: tuple[str, ...],
        options: dict[str, Any],
        *,
        is_decoupled: bool,
    ) -> Iterator[HostReply]:
        """The responses of another model as they arrive. Closing the iterator early cancels the inference. Raises:
        EngineError if the inputs do not fit into shared memory, HostGoneError."""
        connection = self._connection
        write = connection.arrays.write
        try:
            packed = [write(name, datatype, array) for name, datatype, array in inputs]
        except ArenaFullError as full:
            raise unavailable(str(full)) from None
        number = connection.open_number()
        is_final = False
        try:
            connection.send(protocol.INFER, number, model, version, packed, outputs, options, is_decoupled)
            while not is_final:
                _, _, _, tensors, parameters, error, is_final = connection.next_answer(number)
                arrays = {each[0]: connection.arrays.read(each) for each in tensors or ()}
                datatypes = {each[0]: each[1] for each in tensors or ()}
                yield arrays, datatypes, parameters or {}, unpack_error(error), is_final
        finally:
            connection.close_number(number)
            if not is_final:
                connection.send(protocol.INFER_CANCEL, number)

    def control(self, operation: str, *arguments: Any) -> Any:
        """Have the host perform an operation, and wait for its result. Raises: EngineError, HostGoneError."""
        connection = self._connection
        number = connection.open_number()
        try:
            connection.send(protocol.CONTROL, number, operation, arguments)
            _, _, _, value, error = connection.next_answer(number)
        finally:
            connection.close_number(number)
        if failure := unpack_error(error):
            raise failure
        return value

    def measure(self, operation: str, metric: int, value: float | tuple[tuple[int, ...], float]) -> None:
        """Change a custom metric: `increment`, `set` or `observe`; or `merge` many observations, as their counts by
        bucket and their sum."""
        self._connection.send(protocol.METRIC, operation, metric, value)

    def log(self, level: str, text: str, file: str, line: int) -> None:
        self._connection.send(protocol.LOG, level, text, file, line)
