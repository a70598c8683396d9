"""File descriptors: how many this process may have open, and how many it has.

A connection takes one. A process without a free one cannot accept: libuv then accepts with a reserved one and closes
the connection at once (`uv__emfile_trick` of its `src/unix/stream.c`), so that clients see a reset.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
from pathlib import Path

_log = logging.getLogger("pointsman")

# OPEN_MAX of macOS's <sys/syslimits.h>: setrlimit(2) refuses more there where the hard limit is unlimited.
_MAX_OPEN = 10_240
# The share of open descriptors from which the log warns.
_WARN_AT = 0.9


def raise_limit() -> None:
    """Raise the soft limit of this process, and of those that it starts, to the hard limit, 10,240 at most: it is 256
    in a shell on macOS. Where the system refuses, it stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_OPEN if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def limit() -> int:
    """How many this process may have open; 0: no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """How many this process has open. Linux reports the number since 6.2 (proc_pid_fd(5)); elsewhere they are listed,
    which takes a millisecond for some 1,500."""
    with contextlib.suppress(OSError):
        if number := Path("/proc/self/fd").stat().st_size:
            return min(number, limit() or number)  # it is larger where the limit was lowered later
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208  # the one that lists; Path.iterdir makes paths of them all
    except OSError as error:
        return limit() if error.errno == errno.EMFILE else 0


class DescriptorWatch:
    """Warns in the log when few descriptors are left, and when none is: once each, until more are free again."""

    def __init__(self) -> None:
        self._warned_at = 0.0  # the share that the last warning was for; 0: none

    def look(self) -> None:
        """Warn if needed; takes a microsecond or two, however many are open."""
        most = limit()
        share = _lowest_free(most) / most if most else 0.0
        reached = next((each for each in (1.0, _WARN_AT) if share >= each), 0.0)
        if reached > self._warned_at:
            _log.warning(
                "process %d has %d of %d file descriptors open: connections beyond that are closed without an answer; "
                "raise the limit (ulimit -n), or start more workers",
                *(os.getpid(), num_open(), most),
            )
        self._warned_at = max(self._warned_at, reached) if reached else 0.0


def _lowest_free(most: int) -> int:
    """The number of the next descriptor: all below it are open. `most` where none is free."""
    try:
        free = os.dup(0)
    except OSError as error:
        return most if error.errno == errno.EMFILE else 0  # EBADF: this process has no standard input
    os.close(free)
    return free
