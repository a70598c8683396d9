"""The optional access log: one line per request, written in batches, so that no request waits for the disk."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import time
from typing import Any, Literal, TextIO

import orjson

from gateway.config.settings import Settings
from gateway.observability.span_attributes import is_generation, request_attributes

_log = logging.getLogger(__name__)

AccessLogFormat = Literal["text", "json", "otel"]

# A batch is written when it is this old or this long, whichever comes first.
_FLUSH_SECONDS = 0.5
_FLUSH_LINES = 500
# Between two reports of a file that cannot be written.
_REPORT_SECONDS = 60.0
# Clients and models are names of the operator's site: others need not read them.
_FILE_MODE = 0o640

# Those of the format `json`.
_JSON_FIELDS = (
    *("peer", "method", "target", "route", "arm", "engine", "endpoint", "status", "reason", "seconds", "request_id"),
    *("tenant", "key", "fallback", "hedge"),
)


@dataclass(slots=True)
class AccessLogEntry:
    """A request that has ended. `reason` is the kind of a failure, empty where an engine answered; `tenant` and `key`,
    which is an id and no secret, are those of a verified caller. `fallback` is why another engine did not answer,
    empty where none had the request before; `hedge` is what became of its second attempt, empty where it had none.
    `session` is a hash; `first_seconds` run to the first token, or to the reply's first byte; `waited` are the seconds
    for limits and queues; `code` is gRPC's status, -1 where there is none."""

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
    model: str = ""
    version: str = ""
    engine_model: str = ""
    protocol: str = ""
    operation: str = ""
    session: str = ""
    request_bytes: int = 0
    response_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    first_seconds: float = 0.0
    waited: float = 0.0
    attempts: int = 0
    code: int = -1
    trace_id: str = ""
    span_id: str = ""


class AccessLog:
    """Writes entries as text, as JSON lines, or as JSON with OpenTelemetry's names."""

    def __init__(self, log_format: str, stream: TextIO | None = None, *, file: LogFile | None = None) -> None:
        self.format = log_format
        self._render = _RENDERERS[log_format]
        self._file = file
        self._stream = stream or sys.stdout
        self._lines: list[str] = []
        self._flush_handle: asyncio.TimerHandle | None = None

    def write(self, entry: AccessLogEntry) -> None:
        self.write_line(self._render(entry))

    def write_line(self, line: str) -> None:
        """Write a line that is rendered already."""
        self._lines.append(line)
        if len(self._lines) >= _FLUSH_LINES:
            self.flush()
        elif self._flush_handle is None:
            self._flush_handle = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        if not self._lines:
            return
        text = "\n".join(self._lines) + "\n"
        self._lines.clear()
        if self._file is not None:
            self._file.append(text.encode("utf-8", "replace"))
        else:
            self._stream.write(text)
            self._stream.flush()

    def close(self) -> None:
        self.flush()
        if self._file is not None:
            self._file.close()


class LogFile:
    """A file that several processes append to. Once it is renamed or removed, as rotation does, it is made again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1
        self._id: tuple[int, int] = (0, 0)  # of the open file
        self._reported_at = 0.0

    def check(self) -> None:
        """Raises: OSError where it cannot be appended to."""
        self._open()
        self.close()

    def append(self, data: bytes) -> None:
        """Append whole lines in one call; those that cannot be written are lost, and reported."""
        try:
            if self._fd < 0 or not self._is_in_place():
                self._open()
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            now = time()
            if now - self._reported_at > _REPORT_SECONDS:
                self._reported_at = now
                _log.error("lines of the access log are lost: %s: %s", self._path, error.strerror)

    def close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1

    def _is_in_place(self) -> bool:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == self._id

    def _open(self) -> None:
        self.close()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        found = os.fstat(self._fd)
        self._id = (found.st_dev, found.st_ino)


def access_log_of(settings: Settings) -> AccessLog | None:
    """A worker's; None where there is none."""
    path = settings.access_log_file
    if path is None and not settings.access_log:
        return None
    return AccessLog(
        settings.access_log_format or settings.log_format, file=LogFile(path) if path is not None else None
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _as_json(entry: AccessLogEntry) -> str:
    return orjson.dumps({"time": _now(), **{name: getattr(entry, name) for name in _JSON_FIELDS}}).decode()


def _as_otel(entry: AccessLogEntry) -> str:
    """JSON with the names of OpenTelemetry's and ECS's conventions; what a request does not have is left out."""
    fields = {"@timestamp": _now(), "client.address": entry.peer, **common_fields(entry), **own_fields(entry)}
    return orjson.dumps(fields).decode()


def common_fields(entry: AccessLogEntry) -> dict[str, Any]:
    """Those of `otel` that do not differ from one request to the next, of clients of one model."""
    plain = replace(
        entry, request_id="", request_bytes=0, response_bytes=0, cached_tokens=0, session="", finish_reason=""
    )
    fields = request_attributes(plain)
    for name in ("client.address", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"):
        fields.pop(name, None)
    fields["event.outcome"] = "failure" if entry.reason or entry.status >= 500 else "success"
    if entry.endpoint:
        fields["pointsman.endpoint"] = entry.endpoint
    if entry.attempts:
        fields["pointsman.attempts"] = entry.attempts
    return fields


def own_fields(entry: AccessLogEntry) -> dict[str, Any]:
    """The others."""
    fields: dict[str, Any] = {"event.duration": int(entry.seconds * 1e9)}  # nanoseconds
    if entry.request_id:
        fields["http.request.header.x-request-id"] = entry.request_id
    if entry.request_bytes:
        fields["http.request.body.size"] = entry.request_bytes
    if entry.response_bytes:
        fields["http.response.body.size"] = entry.response_bytes
    if entry.waited:
        fields["pointsman.wait.duration"] = round(entry.waited, 6)
    if entry.session:
        fields["pointsman.session.hash"] = entry.session
    is_llm = is_generation(entry)
    if is_llm:
        fields["gen_ai.usage.input_tokens"] = entry.prompt_tokens
        fields["gen_ai.usage.output_tokens"] = entry.completion_tokens
        if entry.cached_tokens:
            fields["gen_ai.usage.cache_read.input_tokens"] = entry.cached_tokens
        if entry.finish_reason:
            fields["gen_ai.response.finish_reasons"] = [entry.finish_reason]
    if entry.first_seconds:
        name = "gen_ai.response.time_to_first_chunk" if is_llm else "pointsman.first_byte.duration"
        fields[name] = round(entry.first_seconds, 6)
    if entry.trace_id:
        fields["trace_id"], fields["span_id"] = entry.trace_id, entry.span_id
    return fields


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


_RENDERERS: dict[str, Callable[[AccessLogEntry], str]] = {"text": _as_text, "json": _as_json, "otel": _as_otel}
