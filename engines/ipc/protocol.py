"""What the messages between the host and an instance are about: the first element of each.

The second element of each is a tuple: offsets of blocks that the sender of the message does not use any more. What
follows is written down here, in order. A tensor is (name, datatype, shape, data), where data is

    bytes                   the data itself
    (offset, size)          a block of the sender's arena
    (key, offset, size)     a piece of a client's shared memory
"""

from __future__ import annotations

import marshal
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from engines.core.messages import SharedMemory, TensorData
from engines.ipc.arena import Arena, Mapping

# From the host.
LOAD = 1  # fields of the model, by name
START = 2  # name of the instance, kind, device
EXECUTE = 3  # batch, requests
CANCEL = 4  # request
ANSWER = 5  # inference of the model's own, outputs or None, parameters, error, whether it is the last
RESULT = 6  # control, value, error
FORGET = 7  # key of an implicit state
STOP = 8
# From an instance.
LOADED = 11  # configuration, serialised; whether the instances share the process
STARTED = 12  # placement as JSON; "" if the backend has none
FAILED = 13  # code, message: neither loaded nor started
DONE = 14  # batch, ns of input, inference and output, bytes of memory, responses
RESPONSE = 15  # request, whether it is the last, outputs or None, parameters, error, ns of input, inference, output
INFER = 16  # number, a request to another model, whether it may have several responses
INFER_CANCEL = 17  # number
CONTROL = 18  # number, name of the operation, arguments
LOG = 19  # level, text, file, line
METRIC = 20  # operation, arguments
STOPPED = 21
# From both.
FREED = 30


Message = tuple[Any, ...]

HEAD_BYTES = 4
# Without the back references of later formats: they take time, and these messages repeat nothing.
_FORMAT = 2


def encode(message: Message) -> bytes:
    """A message in its frame; objects with the buffer protocol arrive as `bytes`. Raises: ValueError if the message
    contains other than builtins."""
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


def pack_error(error: EngineError) -> tuple[int, str]:
    return error.code.value, error.message


def unpack_error(packed: tuple[int, str] | None) -> EngineError | None:
    return None if packed is None else EngineError(ErrorCode(packed[0]), packed[1])


PackedTensor = tuple[str, str, tuple[int, ...], Any]

# Up to here a copy through the stream costs less than a block.
INLINE_BYTES = 64 * 1024


def pack(tensor: TensorData, arena: Arena) -> PackedTensor:
    """A tensor for a message. Raises: ArenaFullError."""
    data: Any = tensor.data
    if data.__class__ is SharedMemory:
        data = (data.key, data.offset, data.num_bytes)
    elif len(data) >= INLINE_BYTES:
        data = arena.put(data)
    return tensor.name, tensor.datatype, tensor.shape, data


def unpack(packed: PackedTensor, mapping: Mapping) -> TensorData:
    """A tensor of a message; its data holds its block until the last view is gone."""
    name, datatype, shape, data = packed
    if data.__class__ is not bytes:
        data = SharedMemory(*data) if len(data) == 3 else memoryview(mapping.view(*data)).cast("B")
    return TensorData(name, datatype, shape, data)
