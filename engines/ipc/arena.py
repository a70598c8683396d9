"""Tensors in memory that two processes share: one side allocates blocks of a file, the other maps them.

The file has no name (a memfd, or unlinked at once), so that it ends with both processes. It grows by doubling. A block
belongs to its receiver until the last view of it is gone; then its offset is returned.

macOS has no memfd, and a file on disk is too slow: CPython's mmap flushes the disk at each mapping (F_FULLFSYNC,
Modules/mmapmodule.c). A POSIX shared memory object is never flushed (XNU bsd/kern/kern_descrip.c returns EBADF, which
CPython ignores), but its size can be set only once (bsd/kern/posix_shm.c, `pshm_truncate`): it has the limit's size
from the beginning and is mapped once. Its pages take memory at the first write.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import sys
import tempfile
import weakref
from bisect import insort
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

Block = tuple[int, int]  # offset and size in bytes

# Blocks are aligned for any vector load.
ALIGNMENT_BYTES = 64
GROWTH_BYTES = 1 << 20
# Bytes that stay allocated in a file without used blocks.
KEPT_BYTES = 64 << 20
DEFAULT_LIMIT_BYTES = 4 << 30

USES_POSIX_SHM = sys.platform == "darwin"
# Returns unused pages to the system. On Linux MADV_FREE is for private memory alone.
_TAKE_BACK = getattr(mmap, "MADV_REMOVE", None) or getattr(mmap, "MADV_FREE", None)


class ArenaFullError(Exception):
    """More tensors are under way than the limit of shared memory allows."""

    def __init__(self, size: int, used: int, limit: int):
        super().__init__(
            f"a tensor of {size} bytes does not fit into shared memory: {used} of {limit} bytes are used by "
            "tensors under way"
        )


def open_shared_file(limit_bytes: int = DEFAULT_LIMIT_BYTES) -> int:
    """A file without a name, as a descriptor that children do not inherit: empty, or of its final size if it cannot
    grow. Raises: OSError."""
    if USES_POSIX_SHM:
        return _open_shm(limit_bytes)
    if hasattr(os, "memfd_create"):
        memfd: int = os.memfd_create("pointsman")  # closed in children unless it is passed on
        return memfd
    descriptor, path = tempfile.mkstemp(prefix="pointsman-")
    Path(path).unlink()
    return descriptor


def _open_shm(size: int) -> int:
    import _posixshmem  # type: ignore[import-not-found]  # the way to a name without its resource tracker

    name = f"/pointsman-{secrets.token_hex(8)}"  # macOS: at most 31 characters (PSHMNAMLEN of <sys/posix_shm.h>)
    descriptor: int = _posixshmem.shm_open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _posixshmem.shm_unlink(name)
        os.ftruncate(descriptor, size)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


class Arena:
    """The side that allocates, writes and frees blocks."""

    def __init__(self, descriptor: int, limit_bytes: int = DEFAULT_LIMIT_BYTES):
        self._descriptor = descriptor
        self._limit_bytes = limit_bytes
        self._map: mmap.mmap | None = None
        self._final_bytes = os.fstat(descriptor).st_size  # of a file that cannot grow; 0: it can
        self._size = 0  # bytes of blocks and holes
        self._holes: list[Block] = []  # in order, never touching
        self._used: dict[int, int] = {}
        self.used_bytes = 0

    def put(self, data: Any) -> Block:
        """Copy a contiguous buffer into a new block. Raises: ArenaFullError."""
        size = memoryview(data).nbytes
        offset, place = self.allocate(size)
        place[:] = memoryview(data).cast("B")
        place.release()
        return offset, size

    def allocate(self, size: int) -> tuple[int, memoryview]:
        """A block to write: its offset and its bytes. Release the bytes before the next allocation. Raises:
        ArenaFullError."""
        length = -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES or ALIGNMENT_BYTES
        for index, (offset, room) in enumerate(self._holes):
            if room >= length:
                if room == length:
                    del self._holes[index]
                else:
                    self._holes[index] = (offset + length, room - length)
                break
        else:
            offset = self._grow(length)
        self._used[offset] = length
        self.used_bytes += length
        assert self._map is not None
        return offset, memoryview(self._map)[offset : offset + size]

    def free(self, offset: int) -> None:
        length = self._used.pop(offset)
        self.used_bytes -= length
        insort(self._holes, (offset, length))
        index = self._holes.index((offset, length))
        if index + 1 < len(self._holes) and offset + length == self._holes[index + 1][0]:
            length += self._holes.pop(index + 1)[1]
            self._holes[index] = (offset, length)
        if index and sum(self._holes[index - 1]) == offset:
            del self._holes[index]
            before, room = self._holes[index - 1]
            self._holes[index - 1] = (before, room + length)
        if not self._used and self._size > KEPT_BYTES:
            self._resize(KEPT_BYTES)
            self._holes = [(0, KEPT_BYTES)]

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)

    def _grow(self, length: int) -> int:
        """Grow by a block at the end; its offset."""
        ends_in_hole = bool(self._holes) and sum(self._holes[-1]) == self._size
        start = self._holes[-1][0] if ends_in_hole else self._size
        if start + length > self._limit_bytes:
            raise ArenaFullError(length, self.used_bytes, self._limit_bytes)
        if ends_in_hole:
            del self._holes[-1]
        wanted = -(-max(start + length, 2 * self._size) // GROWTH_BYTES) * GROWTH_BYTES
        self._resize(max(min(wanted, self._limit_bytes), start + length))
        if start + length < self._size:
            self._holes.append((start + length, self._size - start - length))
        return start

    def _resize(self, size: int) -> None:
        if not self._final_bytes:
            os.ftruncate(self._descriptor, size)
            self._map = mmap.mmap(self._descriptor, size)
        elif self._map is None:
            self._map = mmap.mmap(self._descriptor, self._final_bytes)
        elif size < self._size and _TAKE_BACK is not None:
            with contextlib.suppress(OSError):  # it stays for the next tensors
                self._map.madvise(_TAKE_BACK, size, self._size - size)
        self._size = size


class Mapping:
    """The side that looks at blocks: `freed` are the offsets of those of which no view is left."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0
        self._watched: dict[int, weakref.ref[Any]] = {}
        self.freed: deque[int] = deque()  # appended by the thread that releases the last view

    def view(self, offset: int, size: int) -> Any:
        """A writable buffer over a block. The block is freed with the last view of the buffer."""
        if offset + size > self._size:
            self._size = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, self._size)  # views keep the previous map alive
        assert self._map is not None
        block = (ctypes.c_ubyte * size).from_buffer(self._map, offset)
        self._watched[offset] = weakref.ref(block, partial(self._let_go, offset))
        return block

    @property
    def has_views(self) -> bool:
        return bool(self._watched)

    def take_freed(self) -> tuple[int, ...]:
        """The freed blocks to report to the other side, each once."""
        freed = []
        while self.freed:
            freed.append(self.freed.popleft())
        return tuple(freed)

    def close(self) -> None:
        """Close the file; existing views stay valid."""
        self._map = None
        os.close(self._descriptor)

    def _let_go(self, offset: int, _: Any) -> None:
        del self._watched[offset]
        self.freed.append(offset)
