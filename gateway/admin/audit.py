"""The audit: who has changed what, when, and how it ended. Each call that is not a reading one is an entry.

Entries are in Redis where the gateway has one, and all its gateways' are there; else in a file of `--data-dir`. Both
are bounded, outlive the gateway, and hold no secrets.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from time import time
from typing import Annotated, Any, Protocol

import orjson
from fastapi import FastAPI, HTTPException, Query
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.audit_file import AuditFile
from gateway.admin.auth import ANONYMOUS, Admin, Caller
from gateway.admin.redaction import body_cut, query_cut
from gateway.admin.redis_errors import PATIENCE_SECONDS, answered
from gateway.redis.bounded_client import Store

Json = dict[str, Any]

_log = logging.getLogger("pointsman")

_KEY = "pointsman:1:audit"
_MAX_ENTRIES = 10_000
# How much of a body is looked at; rule files are the longest, and told by their digests.
_MAX_BODY_BYTES = 256 * 1024
# An answer waits so long for its entry to be written, and no longer.
_PATIENCE_SECONDS = 0.5
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One call. `time` is in seconds since 1970."""

    time: float
    name: str
    role: str
    peer: str
    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    status: int


class AuditLog(Protocol):
    """Where entries are."""

    async def write(self, line: bytes) -> None: ...

    async def last(self, count: int) -> list[bytes]:
        """The last entries, the newest first.

        Raises: HTTPException where they cannot be read.
        """
        ...


class RedisLog:
    """In a stream that all gateways of a Redis share. While it is away entries wait for it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def write(self, line: bytes) -> None:
        self._store.tell(("XADD", _KEY, "MAXLEN", "~", _MAX_ENTRIES, "*", "entry", line))

    async def last(self, count: int) -> list[bytes]:
        await self._store.flush(_PATIENCE_SECONDS)
        (found,) = await answered(self._store.ask([("XREVRANGE", _KEY, "+", "-", "COUNT", count)], PATIENCE_SECONDS))
        if isinstance(found, Exception):
            raise HTTPException(503, f"Redis refuses: {found}")
        return [fields[b"entry"] for _, fields in found if b"entry" in fields]


def audit_log(store: Store | None, file: AuditFile) -> AuditLog:
    """Redis where there is one, else the file."""
    return RedisLog(store) if store is not None else file


class Auditing:
    """The middleware: it stands behind the gate, which has found out who calls."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        call = _Call(scope, receive, send, self._log)
        try:
            await self._app(scope, call.receive, call.send)
        finally:  # one that ends without an answer has ended, too
            await call.ended(500)


class _Call:
    """One call under way: its body as it is read, and its entry, written once, before its answer is sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, log: AuditLog) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._log = log
        self._body = bytearray()
        self._num_bytes = 0
        self._is_written = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._num_bytes += len(body)
            self._body += body[: _MAX_BODY_BYTES - len(self._body)]
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self.ended(message["status"])
        await self._send(message)

    async def ended(self, status: int) -> None:
        if self._is_written:
            return
        self._is_written = True
        try:
            await asyncio.wait_for(self._log.write(orjson.dumps(asdict(self._entry(status)))), _PATIENCE_SECONDS)
        except (OSError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            _log.error("a call is not in the audit: %s %s: %s", self._scope["method"], self._path, why)
        except Exception:  # the call has been carried out, whatever becomes of its entry
            _log.exception("a call could not be written to the audit: %s %s", self._scope["method"], self._path)

    @property
    def _path(self) -> str:
        return str(self._scope["path"])

    def _entry(self, status: int) -> AuditEntry:
        caller: Caller = self._scope.get("state", {}).get("caller") or ANONYMOUS
        return AuditEntry(
            time=time(),
            name=caller.name,
            role=caller.role.name,
            peer=self._scope["client"][0] if self._scope.get("client") else "",
            method=self._scope["method"],
            path=self._path,
            query=query_cut(self._scope.get("query_string", b"")),
            body=body_cut(bytes(self._body), self._num_bytes <= _MAX_BODY_BYTES),
            status=status,
        )


def add_audit(app: FastAPI, log: AuditLog) -> None:
    """Answer for `/audit`."""

    @app.get("/audit", tags=["audit"])
    async def audit(_: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
        """The last calls that changed something, or tried to; the newest first."""
        return {"audit": [orjson.loads(line) for line in await log.last(limit)]}
