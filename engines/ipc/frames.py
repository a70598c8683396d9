"""Messages between the host and an instance on a stream: tuples of builtins, each behind its length.

`marshal` is the fastest way to write such tuples and needs the same Python on both ends, which they are.
"""

from __future__ import annotations

import marshal
from typing import Any

Message = tuple[Any, ...]

HEAD_BYTES = 4
# Without the back references of later formats: they take time, and nothing in these messages repeats.
_FORMAT = 2


def encode(message: Message) -> bytes:
    """A message as it stands on the stream; what has the buffer protocol arrives as `bytes`.

    Raises: ValueError where the message holds something else than builtins.
    """
    body = marshal.dumps(message, _FORMAT)
    return len(body).to_bytes(HEAD_BYTES, "little") + body


class FrameReader:
    """Cuts a stream into messages."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0  # bytes until a look at the pieces is worth it

    def feed(self, data: bytes) -> list[Message]:
        """The messages that are whole with this piece."""
        if not self._pieces and int.from_bytes(data[:HEAD_BYTES], "little") == len(data) - HEAD_BYTES:
            return [marshal.loads(data[HEAD_BYTES:])]  # the common case: one message, in one piece
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        messages, position, size = [], 0, len(data)
        view = memoryview(data)
        while position < size:
            begin = position + HEAD_BYTES
            end = begin + int.from_bytes(data[position:begin], "little") if begin <= size else begin
            if end > size or begin > size:
                self._pieces = [data[position:]]
                self._missing = end - size
                break
            messages.append(marshal.loads(view[begin:end]))
            position = end
        return messages
