"""The metrics port: `GET /metrics`, as an ASGI app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from engines.host import prometheus_text
from engines.host.prometheus_text import PrometheusFamily

Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]


class MetricsApp:
    """Answers with what `families` tells at that moment; other paths are empty, as Triton's are."""

    def __init__(self, families: Callable[[], Iterable[PrometheusFamily]]) -> None:
        self._families = families

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = 200, b""
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, b'{"error":"Method Not Allowed"}'
        elif scope["path"] in ("/metrics", "/metrics/"):
            body = prometheus_text.write(self._families())
        headers = [(b"content-type", prometheus_text.CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
