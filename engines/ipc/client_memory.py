"""Clients' POSIX shared memory, mapped in the process that reads and writes the tensors."""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]  # the way to a name without its resource tracker
import mmap
import os
from collections import OrderedDict

from engines.core.errors import invalid
from engines.core.messages import SharedMemory

MAX_MAPPED = 32


class ClientMemory:
    """Recently used objects. An object that a client has created again under the same name is mapped again.

    fstat(2) identifies an object on Linux. On macOS it returns neither device nor inode (XNU bsd/kern/posix_shm.c,
    `pshm_stat`), so that two objects of one name and size look the same: there every request maps its object.
    """

    def __init__(self) -> None:
        self._mapped: OrderedDict[str, tuple[tuple[int, int, int], mmap.mmap]] = OrderedDict()

    def view(self, place: SharedMemory) -> memoryview:
        """The bytes of a piece, writable.

        Raises: EngineError if there is no such object, or no such piece of it.
        """
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
