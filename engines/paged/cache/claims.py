"""Memory that the engines of one machine (or container) have planned to use, so that two do not plan for the same
bytes.

A claim is a file that its engine holds a lock on (flock). The kernel releases the lock when the process ends, so an
unlocked file belongs to an ended engine, even where another process has its pid.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from engines.paged.ops.cpp_compiler import cache_root

_log = logging.getLogger(__name__)

# How long an engine waits for another's planning, which takes milliseconds unless a debugger stops it.
LOCK_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_SUFFIX = ".claim"


class MemoryClaims:
    """The claims in one folder; by default this user's, of all processes that share memory with this one."""

    def __init__(self, folder: Path | None = None, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> None:
        self.folder = folder or cache_root() / "memory" / memory_domain()
        self._timeout_seconds = timeout_seconds

    @contextmanager
    def planning(self) -> Iterator[int]:
        """Bytes that live engines have claimed. Others wait with their plans until this one has claimed its own, up to
        the timeout: then they plan with the claims that they see, and log a warning.

        Where the folder cannot be used, no other engine is counted.
        """
        with ExitStack() as stack:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                (self.folder / "lock").touch(0o600)
                self._lock(stack.enter_context((self.folder / "lock").open("ab")))
                claimed = self._claimed()
            except OSError as error:
                _log.debug("memory of other engines is not counted: %s", error)
                claimed = 0
            yield claimed

    def claim(self, num_bytes: int) -> MemoryClaim:
        """Claim bytes while planning. The claim lasts as long as the object, or until it is released."""
        try:
            descriptor, name = tempfile.mkstemp(_SUFFIX, f"{os.getpid()}-", self.folder)
        except OSError:
            return MemoryClaim(None, None)
        claim = MemoryClaim(descriptor, Path(name))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, b"%d\n" % num_bytes)
        except OSError as error:  # a file system without locks, or a full one
            _log.debug("the memory of this engine cannot be claimed: %s", error)
            claim.release()
        return claim

    def _lock(self, lock: IO[bytes]) -> None:
        """Wait for the lock, up to the timeout."""
        until = time.monotonic() + self._timeout_seconds
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() >= until:
                    break
                time.sleep(_PAUSE_SECONDS)
        message = "another engine has planned its memory for %g s: this one no longer waits for it (%s)"
        _log.warning(message, self._timeout_seconds, self.folder)

    def _claimed(self) -> int:
        total = 0
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with suppress(OSError, ValueError), path.open("rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    total += int(file.read())
                else:
                    path.unlink()
        return total


class MemoryClaim:
    """Bytes of one engine, until it is released or collected."""

    def __init__(self, descriptor: int | None, path: Path | None) -> None:
        self._release = weakref.finalize(self, _remove, descriptor, path)

    def release(self) -> None:
        self._release()


def _remove(descriptor: int | None, path: Path | None) -> None:
    if path is not None and descriptor is not None:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)
_CGROUP = Path("/sys/fs/cgroup")


def memory_domain() -> str:
    """An identifier of letters, digits, '.', '_' and '-' for the processes that share memory with this one: the
    machine's boot, and the inode of the root cgroup that this process sees (cgroup_namespaces(7): a container's own, or
    the machine's). A cache folder does not identify them: a home folder may be on NFS, and containers may share a
    volume."""
    try:
        inode = _CGROUP.stat().st_ino
    except OSError:
        inode = 0
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', _boot())}-{inode}"


def _boot() -> str:
    """The kernel's random id of this boot; the host name where there is none."""
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # generated by XNU at each boot
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        else:
            text = _BOOT_ID.read_text()
    except OSError:
        text = ""
    return text.strip() or socket.gethostname()
