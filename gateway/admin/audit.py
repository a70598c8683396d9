"""The audit: every call that can change something, with its caller, time and status, and without secrets."""

from __future__ import annotations

import asyncio
import logging
from time import time
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.api_keys import Caller
from gateway.admin.audit_log import ANONYMOUS, WRITE_SECONDS, AuditLog, write_entry
from gateway.admin.auth import Admin
from gateway.admin.redaction import redacted_body, redacted_query

Json = dict[str, Any]

_log = logging.getLogger("pointsman")

# How much of a body is looked at; rule files are longer, and recorded by their digests.
_MAX_BODY_BYTES = 256 * 1024
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class AuditMiddleware:
    """Writes an entry for each call; it runs behind `AuthMiddleware`, which identifies the caller."""

    def __init__(self, app: ASGIApp, log: AuditLog) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in _READING:
            await self._app(scope, receive, send)
            return
        body, num_bytes, is_written = bytearray(), 0, False

        async def received() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                piece = message.get("body", b"")
                num_bytes += len(piece)
                body.extend(piece[: _MAX_BODY_BYTES - len(body)])
            return message

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                await ended(message["status"])
            await send(message)

        async def ended(status: int) -> None:
            """Write the entry, once, before the reply is sent."""
            nonlocal is_written
            is_anonymous = scope.get("state", {}).get("caller") is None
            if not is_written and not (is_anonymous and status >= 400):  # who guesses does not push entries out
                is_written = True
                shown = redacted_body(bytes(body), num_bytes <= _MAX_BODY_BYTES)
                await self._write(scope, {**_entry(scope), "body": shown, "status": status})

        try:
            await self._app(scope, received, sent)
        finally:  # a call without a reply has an entry, too
            await ended(500)

    async def _write(self, scope: Scope, entry: Json) -> None:
        try:
            await asyncio.wait_for(write_entry(self._log, entry), WRITE_SECONDS)
        except TimeoutError:
            _log.error("a call is not in the audit: %s %s: it took too long", entry["method"], entry["path"])


def _entry(scope: Scope) -> Json:
    caller: Caller | None = scope.get("state", {}).get("caller")
    return {
        "time": time(),
        "name": caller.name if caller is not None else ANONYMOUS,
        "role": caller.role.name if caller is not None else "none",
        "peer": scope["client"][0] if scope.get("client") else "",
        "method": scope["method"],
        "path": scope["path"],
        "query": redacted_query(scope.get("query_string", b"")),
    }


def add_audit(app: FastAPI, log: AuditLog) -> None:
    """Add `/audit`."""

    @app.get("/audit", tags=["audit"])
    async def audit(_: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Json:
        """The last calls that changed something, or tried to, the newest first."""
        return {"audit": [orjson.loads(line) for line in await log.last(limit)]}
