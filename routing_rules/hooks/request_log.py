"""A log of requests in a file, one JSON object a line, written in the background: prompts only where `bodies` says so.

All workers append to the same file, and a line is one write, so that lines are whole.
"""

import json
import os
import time
from typing import Any

from gateway.hooks import HookFailure, HookReply, HookRequest


class RequestLog:
    """Appends to `file`, which only its owner can read. `bodies: "yes"` logs prompts, too: they may be personal."""

    def __init__(self, file: str, bodies: str = "no", max_body: str = "10000") -> None:
        self._file, self._bodies, self._max_body = file, bodies == "yes", int(max_body)

    def on_reply(self, request: HookRequest, reply: HookReply) -> None:
        self._write(request, status=reply.status, bytes=reply.num_bytes, seconds=round(reply.seconds, 4))

    def on_error(self, request: HookRequest, failure: HookFailure) -> None:
        self._write(request, status=failure.status, reason=failure.reason)

    def _write(self, request: HookRequest, **more: Any) -> None:
        entry = {
            "time": round(time.time(), 3),
            "id": request.request_id,
            "route": request.route,
            "engine": request.engine,
            "model": request.model,
            "tenant": request.tenant,
            "operation": request.operation,
            "arm": request.arm,
            **more,
        }
        if self._bodies:
            entry["body"] = request.body[: self._max_body].decode("utf-8", "replace")
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
