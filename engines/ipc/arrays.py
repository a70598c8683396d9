"""Tensors of messages as arrays, and arrays as tensors of messages: in the message, in an arena, or in clients'
memory."""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # the way to a name without its resource tracker
import mmap
import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from engines.core.datatypes import Array, numpy_datatype
from engines.core.errors import internal, invalid
from engines.core.messages import SharedMemory
from engines.ipc.arena import Arena, Mapping
from engines.ipc.protocol import INLINE_BYTES, PackedTensor
from gateway.protocol.datatypes import DATATYPES

MAX_MAPPED = 32


class ClientMemory:
    """Recently used objects. An object that a client has created again under the same name is mapped again.

    fstat(2) identifies an object on Linux. On macOS it returns neither device nor inode (XNU bsd/kern/posix_shm.c,
    `pshm_stat`), so that two objects of one name and size look the same: there every request maps its object.
    """

    def __init__(self) -> None:
        self._mapped: OrderedDict[str, tuple[tuple[int, int, int], mmap.mmap]] = OrderedDict()

    def view(self, place: SharedMemory) -> memoryview:
        """The bytes of a piece, writable. Raises: EngineError if there is no such object, or no such piece of it."""
        mapped = self._map(place.key)
        end = place.offset + place.num_bytes
        if place.offset < 0 or end > len(mapped):
            raise invalid(
                f"the shared memory region '{place.key}' has {len(mapped)} bytes, bytes {place.offset} to {end} are "
                "asked for"
            )
        return memoryview(mapped)[place.offset : end]

    def _map(self, key: str) -> mmap.mmap:
        name = key if key.startswith("/") else f"/{key}"
        try:
            descriptor = _posixshmem.shm_open(name, os.O_RDWR, 0o600)
        except OSError as error:
            self._mapped.pop(name, None)
            raise invalid(f"Unable to open shared memory region: '{key}' ({error.strerror})") from error
        try:
            status = os.fstat(descriptor)
            if not status.st_dev and not status.st_ino:
                return mmap.mmap(descriptor, status.st_size)
            identity = (status.st_dev, status.st_ino, status.st_size)
            entry = self._mapped.get(name)
            if entry is None or entry[0] != identity:
                entry = self._mapped[name] = (identity, mmap.mmap(descriptor, status.st_size))
        except (OSError, ValueError) as error:
            raise invalid(f"Unable to map shared memory region: '{key}' ({error})") from error
        finally:
            os.close(descriptor)
        self._mapped.move_to_end(name)
        if len(self._mapped) > MAX_MAPPED:
            self._mapped.popitem(last=False)
        return entry[1]


_DTYPES = {datatype: numpy_datatype(datatype) for datatype in DATATYPES}
# Of too little data, of axes that are negative or too long, of axes that no machine word holds.
_NO_ARRAY = (TypeError, ValueError, OverflowError)
_LENGTH_BYTES = 4


class ArrayStore:
    """The tensors of one channel: in its messages, its arenas, and clients' shared memory."""

    def __init__(self, sent: Arena, received: Mapping) -> None:
        self._sent = sent
        self._received = received
        self._clients = ClientMemory()
        self._lock = threading.Lock()  # of the arena: models may respond from their own threads

    def read(self, packed: PackedTensor) -> Array:
        """A tensor as an array: a copy, or a view of memory that stays until the last array over it is gone. Raises:
        EngineError if it is in unreachable shared memory, or too short."""
        name, datatype, shape, data = packed
        buffer: Any
        if data.__class__ is bytes:
            buffer = data if datatype == "BYTES" else bytearray(data)
        else:
            buffer = self._received.view(*data) if len(data) == 2 else self._clients.view(SharedMemory(*data))
        if datatype == "BYTES":
            return decode_bytes(bytes(buffer), shape)
        try:
            return np.ndarray(shape, _DTYPES[datatype], buffer)
        except _NO_ARRAY as error:
            raise invalid(f"the data of '{name}' has {len(buffer)} bytes, which is not its shape's size") from error

    def drop(self, packed: PackedTensor) -> None:
        """Free the block of a tensor that is not read."""
        data = packed[3]
        if data.__class__ is not bytes and len(data) == 2:
            self._received.view(*data)

    def write(self, name: str, datatype: str, array: Array, place: SharedMemory | None = None) -> PackedTensor:
        """An array as a tensor for a message; `place` is the client's shared memory for the data. Raises: EngineError
        if the place is too small or unreachable, ArenaFullError."""
        shape = array.shape
        data: Any
        if datatype == "BYTES":
            data = encode_bytes(array)
            size = len(data)
        else:
            size = array.nbytes
            if place is None and size < INLINE_BYTES:
                return name, datatype, shape, array.tobytes()
            data = array
        if place is not None:
            return name, datatype, shape, self._write_there(name, data, size, place)
        if size >= INLINE_BYTES:
            with self._lock:
                offset, target = self._sent.allocate(size)
            _copy(data, target)
            data = (offset, size)
        return name, datatype, shape, data

    def free(self, offsets: tuple[int, ...]) -> None:
        """Free blocks that the host has released."""
        with self._lock:
            for offset in offsets:
                self._sent.free(offset)

    @property
    def has_freed(self) -> bool:
        """Whether `take_freed` has any."""
        return bool(self._received.freed)

    def take_freed(self) -> tuple[int, ...]:
        """The host's blocks that are released here, each once."""
        return self._received.take_freed() if self._received.freed else ()

    def _write_there(self, name: str, data: Any, size: int, place: SharedMemory) -> tuple[str, int, int]:
        if size > place.num_bytes:
            raise internal(
                f"shared memory size specified with the request for output '{name}' ({place.num_bytes} bytes) should "
                f"be at least {size} bytes to hold the results"
            )
        if size:
            _copy(data, self._clients.view(place)[:size])
        return place.key, place.offset, size


def _copy(data: Any, target: memoryview) -> None:
    if isinstance(data, bytes):
        target[:] = data
    else:
        np.copyto(np.ndarray(data.shape, data.dtype, target), data)


def decode_bytes(data: bytes, shape: tuple[int, ...]) -> Array:
    """An array of `bytes` from elements with length prefixes. Raises: EngineError with Triton's text if the data does
    not fit the shape."""
    elements, position, size = [], 0, len(data)
    while position < size:
        begin = position + _LENGTH_BYTES
        position = begin + int.from_bytes(data[begin - _LENGTH_BYTES : begin], "little")
        if position > size or begin > size:
            raise invalid("incomplete string data for inference input")
        elements.append(data[begin:position])
    array = np.empty(len(elements), object)
    array[:] = elements
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError) as error:
        raise invalid(f"expected a shape of {len(elements)} strings, got {list(shape)}") from error


def encode_bytes(array: Array) -> bytes:
    """The elements of an array in row-major order, with length prefixes; elements other than `bytes` are written as
    text."""
    pieces = []
    for element in array.ravel():
        data = element if isinstance(element, bytes) else str(element).encode()
        pieces.append(len(data).to_bytes(_LENGTH_BYTES, "little"))
        pieces.append(data)
    return b"".join(pieces)
