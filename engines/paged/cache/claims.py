"""What the engines of one machine (or container) have planned to take of its memory, so that two do not plan for the
same bytes.

A claim is a file that its engine holds a lock on (flock). The kernel releases it when the process ends, so a file that
can be locked belongs to an engine that has ended, whichever process has its pid by now.
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
from contextlib import contextmanager, suppress
from pathlib import Path

from engines.paged.ops.cpp_compiler import cache_root

_log = logging.getLogger(__name__)

# How long an engine waits for another's plan, which takes milliseconds; the other may be stopped by a debugger.
LOCK_TIMEOUT_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_SUFFIX = ".claim"


class MemoryClaims:
    """The claims in one folder; by default this user's, of all programs that share memory with this one."""

    def __init__(self, folder: Path | None = None, timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> None:
        self.folder = folder or cache_root() / "memory" / memory_domain()
        self._timeout_seconds = timeout_seconds

    @contextmanager
    def planning(self) -> Iterator[int]:
        """Bytes that living engines have claimed. Others wait with their plans until this one has claimed its own, but
        no longer than their patience: then they plan with the claims that they see, and log that.

        Where the folder cannot be used nobody else is known of, and nobody waits.
        """
        try:
            lock = self._open_lock()
        except OSError as error:
            _log.debug("memory of other engines is not counted: %s", error)
            yield 0
            return
        try:
            yield self._claimed()
        finally:
            os.close(lock)

    def claim(self, num_bytes: int) -> MemoryClaim:
        """To be called while planning. The claim holds as long as the object lives, or until it is released."""
        try:
            descriptor, name = tempfile.mkstemp(_SUFFIX, f"{os.getpid()}-", self.folder)
        except OSError:
            return MemoryClaim(None, None)
        claim = MemoryClaim(descriptor, Path(name))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, b"%d\n" % num_bytes)
        except OSError as error:  # a file system without locks, or a full one
            _log.debug("other engines are not told of this one's memory: %s", error)
            claim.release()
        return claim

    def _open_lock(self) -> int:
        self.folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not self._lock(descriptor):
                message = "another engine has planned its memory for %g s: this one no longer waits for it (%s)"
                _log.warning(message, self._timeout_seconds, self.folder)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _lock(self, descriptor: int) -> bool:
        """Whether it is locked, within the time that there is."""
        until = time.monotonic() + self._timeout_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    return False
                time.sleep(_PAUSE_SECONDS)
            else:
                return True

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
    """Bytes of one engine, until it is released or forgotten."""

    def __init__(self, descriptor: int | None, path: Path | None) -> None:
        self._release = weakref.finalize(self, _remove, descriptor, path)

    def release(self) -> None:
        """The memory is free for others."""
        self._release()


def _remove(descriptor: int | None, path: Path | None) -> None:
    if path is not None and descriptor is not None:
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # random(4)
_CGROUP = Path("/sys/fs/cgroup")


def memory_domain() -> str:
    """A name of letters, digits, '.', '_' and '-': the machine's start, and the inode of the cgroup at the root of what
    this process sees (cgroup_namespaces(7): a container sees its own there; on a host it is the machine's)."""
    try:
        inode = _CGROUP.stat().st_ino
    except OSError:
        inode = 0
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', _boot())}-{inode}"


def _boot() -> str:
    """What the kernel has drawn at its start; the name of the host where there is none."""
    try:
        if sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"]  # drawn by XNU at each start
            text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        else:
            text = _BOOT_ID.read_text()
    except OSError:
        text = ""
    return text.strip() or socket.gethostname()
