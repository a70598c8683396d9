"""Where the audit's entries are: in Redis where the gateway has one, shared by its replicas, else in a file of
`--data-dir`. Both are bounded, and outlive the gateway."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import orjson

from gateway.admin.redaction import redacted_body, redacted_query
from gateway.admin.redis_query import query_redis
from gateway.observability.audit_record import AuditRecord
from gateway.redis.bounded_client import BoundedRedis

Json = dict[str, Any]

_log = logging.getLogger("pointsman")

ANONYMOUS = "anonymous"
# Longest that a reply waits for its entry.
WRITE_SECONDS = 0.5
_KEY = "pointsman:1:audit"
_MAX_ENTRIES = 10_000
# With the rotated file: about ten thousand calls.
_MAX_FILE_BYTES = 4 * 1024 * 1024
_MAX_IN_MEMORY = 1000
# Operations of the inference ports that wait for their entries.
_MAX_WAITING = 1000


class RedisLog:
    """A stream that all gateways of a Redis share. Entries are queued while Redis is away."""

    def __init__(self, store: BoundedRedis) -> None:
        self._store = store

    async def write(self, line: bytes) -> None:
        self._store.enqueue(("XADD", _KEY, "MAXLEN", "~", _MAX_ENTRIES, "*", "entry", line))

    async def last(self, count: int) -> list[bytes]:
        """The last entries, the newest first."""
        await self._store.flush(WRITE_SECONDS)
        (entries,) = await query_redis(self._store, ("XREVRANGE", _KEY, "+", "-", "COUNT", count))
        return [fields[b"entry"] for _, fields in entries if _is_complete(fields.get(b"entry", b""))]


class AuditFile:
    """`audit.jsonl` of a folder, and the rotated `audit.jsonl.1`; without a folder the last entries stay in memory."""

    def __init__(self, folder: Path | None, max_bytes: int = _MAX_FILE_BYTES) -> None:
        self._path = folder / "audit.jsonl" if folder is not None else None
        self._max_bytes = max_bytes
        self._recent: deque[bytes] = deque(maxlen=_MAX_IN_MEMORY)
        self._lock = Lock()

    async def write(self, line: bytes) -> None:
        """Append an entry.

        Raises: OSError; the entry is in memory then.
        """
        self._recent.append(line)
        if self._path is not None:
            await asyncio.to_thread(self._append, self._path, line)

    async def last(self, count: int) -> list[bytes]:
        """The last entries, the newest first."""
        lines = await asyncio.to_thread(self._read, self._path) if self._path is not None else []
        return (lines or list(self._recent))[: -count - 1 : -1]

    def _append(self, path: Path, line: bytes) -> None:
        with self._lock:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line + b"\n")
                is_long = os.fstat(descriptor).st_size > self._max_bytes
            finally:
                os.close(descriptor)
            if is_long:
                path.replace(_rotated(path))

    def _read(self, path: Path) -> list[bytes]:
        """Complete lines only: a gateway that was killed may have left a part of one."""
        with self._lock:
            texts = [file.read_bytes() for file in (_rotated(path), path) if file.exists()]
        return [line for text in texts for line in text.split(b"\n") if _is_complete(line)]


def _rotated(path: Path) -> Path:
    return path.with_name(path.name + ".1")


def _is_complete(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except ValueError:
        return False


AuditLog = RedisLog | AuditFile


async def write_entry(log: AuditLog, entry: Json) -> None:
    try:
        await log.write(orjson.dumps(entry))
    except OSError as error:
        _log.error("a call is not in the audit: %s %s: %s", entry["method"], entry["path"], error)
    except Exception:  # the call has been carried out, so its caller gets its reply
        _log.exception("a call could not be written to the audit: %s %s", entry["method"], entry["path"])


class OperationAudit:
    """Writes an entry for each operation of the inference ports that changes engines, in their order.

    `record` never waits: where the audit cannot keep up, operations are left out, and the log says so.
    """

    def __init__(self, log: AuditLog) -> None:
        self._log = log
        self._entries: asyncio.Queue[Json] = asyncio.Queue(_MAX_WAITING)
        self._task = asyncio.get_running_loop().create_task(self._write_all())

    def record(self, record: AuditRecord) -> None:
        path, _, query = record.target.partition("?")
        entry = {
            "time": record.time,
            "name": record.principal or ANONYMOUS,
            "role": "client",
            "peer": record.peer,
            "protocol": record.protocol,
            "method": record.method,
            "path": path,
            "query": redacted_query(query.encode("latin-1", "replace")),
            "body": redacted_body(record.body, record.num_body_bytes == len(record.body)),
            "status": record.status,
        }
        try:
            self._entries.put_nowait(entry)
        except asyncio.QueueFull:
            _log.error("a call is not in the audit, which is too slow: %s %s from %s", record.method, path, record.peer)

    async def close(self) -> None:
        """Write what waits, within half a second."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._entries.join(), WRITE_SECONDS)
        self._task.cancel()

    async def _write_all(self) -> None:
        while True:
            await write_entry(self._log, await self._entries.get())
            self._entries.task_done()
