"""The optional access log: one line per request, written in batches, so that no request waits for the disk."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO

import orjson

# A batch is written when it is this old or this long, whichever comes first.
_FLUSH_SECONDS = 0.5
_FLUSH_LINES = 500


@dataclass(frozen=True, slots=True)
class AccessLogEntry:
    """A request that has ended. `reason` is the kind of a failure, empty where an engine answered; `tenant` and `key`,
    which is an id and no secret, are those of a verified caller. `fallback` is why another engine did not answer,
    empty where none had the request before; `hedge` is what became of its second attempt, empty where it had none."""

    peer: str
    method: str
    target: str
    route: str
    arm: str
    engine: str
    endpoint: str
    status: int
    reason: str
    seconds: float
    request_id: str
    tenant: str = ""
    key: str = ""
    fallback: str = ""
    hedge: str = ""


class AccessLog:
    """Writes entries as text or as JSON lines."""

    def __init__(self, log_format: str, stream: TextIO = sys.stdout) -> None:
        self._render = _as_json if log_format == "json" else _as_text
        self._stream = stream
        self._lines: list[str] = []
        self._flush_handle: asyncio.TimerHandle | None = None

    def write(self, entry: AccessLogEntry) -> None:
        self._lines.append(self._render(entry))
        if len(self._lines) >= _FLUSH_LINES:
            self.flush()
        elif self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if self._lines:
            self._stream.write("\n".join(self._lines) + "\n")
            self._stream.flush()
            self._lines.clear()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _as_json(entry: AccessLogEntry) -> str:
    return orjson.dumps({"time": _now(), **{name: getattr(entry, name) for name in AccessLogEntry.__slots__}}).decode()


def _as_text(entry: AccessLogEntry) -> str:
    where = " ".join(part for part in (entry.route, entry.arm, entry.engine, entry.endpoint) if part) or "-"
    reason = f" {entry.reason}" if entry.reason else ""
    if entry.fallback:
        where += f" fallback={entry.fallback}"
    if entry.hedge:
        where += f" hedge={entry.hedge}"
    caller = f" {entry.tenant}/{entry.key}" if entry.tenant else ""
    return (
        f'{_now()} {entry.peer}{caller} "{entry.method} {entry.target}" {entry.status}{reason} '
        f"{entry.seconds * 1e3:.1f}ms {where} {entry.request_id}"
    )
