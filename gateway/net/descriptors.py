"""File descriptors: how many this process may have open, and how many it has.

A connection takes one. A process that has none left cannot accept: libuv then accepts with a reserved one and closes
the connection at once, without a word (`uv__emfile_trick` of its `src/unix/stream.c`), so that callers see a reset.
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
_WANTED = 10_240
# With this share of them open it is time to say so.
_FEW_LEFT = 0.9


def raise_limit() -> None:
    """Let this process, and those that it starts, open as many as the hard limit allows, up to 10,240: the soft limit
    is 256 in a shell on macOS. Where the system refuses, it stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(hard, _WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """How many this process may have open; 0: any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 0 if soft == resource.RLIM_INFINITY else soft


def num_open() -> int:
    """How many this process has open. Linux has the number at hand since 6.2 (proc_pid_fd(5)); elsewhere they are
    listed, which takes a millisecond for some 1,500."""
    with contextlib.suppress(OSError):
        if counted := Path("/proc/self/fd").stat().st_size:
            return min(counted, limit() or counted)  # more, where the limit was lowered afterwards
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208  # the one that lists; Path.iterdir makes paths of them all
    except OSError as error:
        return limit() if error.errno == errno.EMFILE else 0


class DescriptorWatch:
    """Says in the log when few descriptors are left, and when none is: each once, until there are more again."""

    def __init__(self) -> None:
        self._said = 0.0  # the share of which the log says that it is open; 0: nothing

    def __repr__(self) -> str:
        return f"<DescriptorWatch {num_open()} of {limit()}>"

    def look(self) -> None:
        """Takes a microsecond or two, however many are open."""
        most = limit()
        share = _lowest_free(most) / most if most else 0.0
        reached = next((each for each in (1.0, _FEW_LEFT) if share >= each), 0.0)
        if reached > self._said:
            _log.warning(
                "process %d has %d of %d file descriptors open: connections beyond that are closed without an answer; "
                "raise the limit (ulimit -n), or start more workers",
                *(os.getpid(), num_open(), most),
            )
        self._said = max(self._said, reached) if reached else 0.0


def _lowest_free(most: int) -> int:
    """The number that the next descriptor gets: all below it are open; `most` where there is none."""
    try:
        free = os.dup(0)
    except OSError as error:
        return most if error.errno == errno.EMFILE else 0  # EBADF: this process has no standard input
    os.close(free)
    return free
