"""Files of a fleet's directory: written whole, locked by one fleet, logs kept to a size."""

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


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never a part. Raises: OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.write_text(text)
    partial.replace(path)


class Lock:
    """A directory that is ours until `close`, or until this process ends."""

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
    """What is known of an agent's last process: enough to find it again after this program was killed."""

    pid: int
    started: str  # the process's start time, as `processes` tells it: pids are used again
    ports: Mapping[str, int] = field(default_factory=dict)


def read_state(path: Path) -> dict[str, SavedState]:
    """What an earlier fleet has left in its state file; nothing where there is none, or none that can be read."""
    try:
        agents = json.loads(path.read_text())["agents"]
        return {
            str(name): SavedState(
                int(agent["pid"]),
                str(agent["started"]),
                {str(port): int(number) for port, number in agent["ports"].items()},
            )
            for name, agent in agents.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_state(path: Path, agents: Mapping[str, SavedState]) -> None:
    """Raises: OSError."""
    told = {
        name: {"pid": agent.pid, "started": agent.started, "ports": dict(agent.ports)} for name, agent in agents.items()
    }
    write_whole(path, json.dumps({"agents": told}, indent=1) + "\n")


def keep_to_size(log: Path, max_bytes: int) -> bool:
    """Move a log that has grown too long to NAME.1, and go on with an empty one; whether that was done.

    The process that writes it keeps its descriptor, which appends, so what it writes next begins the empty file.
    """
    try:
        if log.stat().st_size <= max_bytes:
            return False
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)
    except OSError:
        return False
    return True


def tail(log: Path, num_lines: int) -> list[str]:
    """The last lines of a log that are not empty."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()][-num_lines:]
