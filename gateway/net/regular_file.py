"""Reading a file that an operator names: a pipe in its place would block its reader for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"))


def read_regular(path: str | Path) -> bytes:
    """The content of a regular file. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        with os.fdopen(descriptor, "rb") as file:
            return file.read()
    os.close(descriptor)
    kind = next((name for is_one, name in _KINDS if is_one(mode)), "a device")
    raise OSError(errno.EINVAL, f"it is {kind}, not a file")
