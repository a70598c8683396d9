"""Children that a process forks before it has threads: they share the modules that it has imported, so that these are
neither loaded nor stored again."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from gateway.net.command_line import show_command_line

_THREADS = Path("/proc/self/task")
_pidfd_open: Any = getattr(os, "pidfd_open", None)  # Linux alone, where children are forked


class ForkedChild:
    """A child that waits for its first message. It has the interface of asyncio's `Process`, as far as it is used;
    `watch` comes first."""

    def __init__(self, pid: int, control: socket.socket) -> None:
        self.pid = pid
        self.control = control
        self.returncode: int | None = None
        self._pidfd = -1
        self._exited: asyncio.Event | None = None

    def watch(self) -> None:
        """Notice its end in the running event loop. Raises: OSError."""
        self._exited = asyncio.Event()
        self._pidfd = _pidfd_open(self.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    async def wait(self) -> int:
        assert self._exited is not None
        await self._exited.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)  # until it is reaped, the number is its own

    def discard(self) -> None:
        """End a child that nobody has taken."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self.control.close()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert self._exited is not None
        self._exited.set()


def can_fork() -> bool:
    """Whether this process has one thread, and the system tells the end of a child by a descriptor: Linux. A fork
    copies the calling thread alone, and a lock that another one holds stays locked in the child; on macOS system
    libraries have threads of their own."""
    if sys.platform != "linux" or not hasattr(os, "pidfd_open"):  # a Python built for old kernels lacks it
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
        return len(list(_THREADS.iterdir())) == 1
    except OSError:  # an old kernel, or a sandbox
        return False


@contextmanager
def forked_children(number: int, main: Callable[[socket.socket], int], module: str) -> Iterator[list[ForkedChild]]:
    """Children that run `main`, to be taken from the list; none where this process cannot fork. Those that are left
    are ended. `module` is what `ps` shows, as of one that is started by `python -m`."""
    children: list[ForkedChild] = []
    try:
        if can_fork():
            gc.freeze()  # what exists is examined in no process again, and stays shared
            with suppress(OSError):  # out of processes or memory: others are started later
                children.extend(_fork(main, module) for _ in range(number))
        yield children
    finally:
        for child in children:
            child.discard()


def _fork(main: Callable[[socket.socket], int], module: str) -> ForkedChild:
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _run(main, theirs, module)
    theirs.close()
    return ForkedChild(pid, ours)


def _run(main: Callable[[socket.socket], int], control: socket.socket, module: str) -> NoReturn:
    """The child's life. It has what a started process has: a session, no standard input, no foreign descriptors."""
    status = 1
    try:
        os.setsid()  # Ctrl-C is for the supervisor, which drains its workers
        os.closerange(3, control.fileno())
        os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        show_command_line((sys.executable, "-m", module))
        status = main(control)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)  # what this process was forked from has its own end
