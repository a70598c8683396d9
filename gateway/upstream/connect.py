"""Making a connection to an endpoint, and saying why that failed."""

from __future__ import annotations

import asyncio
import ssl
import sys

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.local_network import local_network_hint


async def connect(
    protocol: asyncio.Protocol,
    host: str,
    port: int,
    timeout: float,
    tls: ssl.SSLContext | None,
    server_name: str | None,
) -> None:
    """Connect a protocol; `timeout` is in seconds, 0 for none.

    Raises: OSError, of which TLS and time are kinds; UnicodeError for a name that nobody can look up.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout or None):
        await loop.create_connection(lambda: protocol, host, port, ssl=tls, server_hostname=server_name)


def connect_error(error: Exception, host: str, port: int, timeout: float) -> GatewayError:
    """What `connect` raised, as the caller may read it."""
    if isinstance(error, TimeoutError):
        why = f"it did not answer within {timeout:g} s"
    elif isinstance(error, ssl.SSLError):
        why = f"the TLS handshake failed: {error.reason or error}"
    else:
        why = str(error)
        if hint := local_network_hint(error, host, sys.platform):
            why = f"{why}: {hint}"
    return GatewayError(ErrorKind.UPSTREAM_CONNECT, f"cannot connect to {host}:{port}: {why}")
