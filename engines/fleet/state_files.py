"""Files of a fleet's directory: the state, the lock, and logs of limited size."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_TAIL_BYTES = 8 * 1024


class LockedError(Exception):
    """Another fleet uses the directory."""


def write_atomically(path: Path, text: str) -> None:
    """Write a file atomically. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)


class Lock:
    """A lock on a directory, until `close` or the end of this process."""

    def __init__(self, path: Path) -> None:
        """Raises: LockedError, OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip()
            self._file.close()
            raise LockedError(
                f"another fleet (pid {holder}) runs in {path.parent}: stop it, or give 'directory'"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class SavedState:
    """An agent's last process, to find it again after this program was killed."""

    pid: int
    started: str  # the process's start time, since pids are reused
    ports: Mapping[str, int] = field(default_factory=dict)


def read_state(path: Path) -> dict[str, SavedState]:
    """The state file of an earlier fleet; empty where it is missing or unreadable."""
    try:
        agents = json.loads(path.read_text())["agents"]
        return {name: SavedState(**agent) for name, agent in agents.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def rotate(log: Path, max_bytes: int) -> bool:
    """Copy a log that is too long to NAME.1 and truncate it; returns whether that was done. The writing process keeps
    its descriptor, which appends to the truncated file."""
    try:
        if log.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def tail(log: Path, num_lines: int) -> list[str]:
    """The last non-empty lines of a log."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-num_lines:]
