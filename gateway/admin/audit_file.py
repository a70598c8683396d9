"""The audit of a gateway without Redis: lines of JSON in a file, put aside when it is long."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from pathlib import Path
from threading import Lock

import orjson

# With the one put aside before: some ten thousand calls.
_MAX_BYTES = 4 * 1024 * 1024


class AuditFile:
    """`audit.jsonl` of a folder, and `audit.jsonl.1`, which came before it. Where there is no folder the last entries
    are in memory alone."""

    def __init__(self, folder: Path | None, max_bytes: int = _MAX_BYTES) -> None:
        self._path = folder / "audit.jsonl" if folder is not None else None
        self._max_bytes = max_bytes
        self._recent: deque[bytes] = deque(maxlen=1000)
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"<AuditFile {self._path or 'in memory'}>"

    @property
    def _before(self) -> Path:
        assert self._path is not None
        return self._path.with_name(self._path.name + ".1")

    async def write(self, line: bytes) -> None:
        """Append an entry.

        Raises: OSError; it is in memory then.
        """
        self._recent.append(line)
        if self._path is not None:
            await asyncio.to_thread(self._append, line)

    async def last(self, count: int) -> list[bytes]:
        """The last entries, the newest first."""
        if self._path is not None:
            lines = await asyncio.to_thread(self._read)
            if lines:
                return lines[: -count - 1 : -1]
        return list(self._recent)[: -count - 1 : -1]

    def _append(self, line: bytes) -> None:
        assert self._path is not None
        with self._lock:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line + b"\n")
                is_long = os.fstat(descriptor).st_size > self._max_bytes
            finally:
                os.close(descriptor)
            if is_long:
                self._path.replace(self._before)

    def _read(self) -> list[bytes]:
        """Whole lines alone: a gateway that was killed may have left half of one."""
        lines: list[bytes] = []
        with self._lock:
            for path in (self._before, self._path):
                if path is not None and path.exists():
                    lines += filter(_is_whole, path.read_bytes().split(b"\n"))
        return lines


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except ValueError:
        return False
