"""One question for readiness, by HTTP, on a connection of its own.

A connection that is kept would hold up the end of a server that waits for its clients, as Triton does.
"""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import urlsplit

from engines.fleet.health_state import Probe


async def probe(url: str, timeout_seconds: float) -> Probe:
    """Ask; YES where the status is 2xx, NOTHING where no HTTP status comes in time."""
    try:
        async with asyncio.timeout(timeout_seconds):
            status = await _status_of(url)
    except (OSError, ValueError, asyncio.LimitOverrunError):  # a timeout is an OSError; ValueError: no HTTP, no URL
        return Probe.NOTHING
    return Probe.YES if 200 <= status < 300 else Probe.NO


async def _status_of(url: str) -> int:
    """Raises: OSError, ValueError."""
    parts = urlsplit(url)
    is_https = parts.scheme == "https"
    port = parts.port or (443 if is_https else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=True if is_https else None)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        head = f"GET {path} HTTP/1.1\r\nhost: {parts.netloc}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode("latin-1"))
        version, status = (await reader.readline()).split()[:2]
        if not version.startswith(b"HTTP/"):
            raise ValueError(f"{url} does not speak HTTP")
        return int(status)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
