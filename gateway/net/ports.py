"""Ports that others listen on already."""

from __future__ import annotations

import contextlib
import socket
import sys

# With SO_REUSEADDR, Linux refuses to bind where anybody listens. BSD's systems, macOS among them, refuse only the same
# address: a server binds to 127.0.0.1:8000 beside one on all addresses, and takes its callers of this machine.
BIND_REFUSES_ALL = sys.platform == "linux"

_CONNECT_SECONDS = 0.5
_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def is_taken(host: str, port: int) -> bool:
    """Whether somebody listens where bind(2) would not refuse: on this port, at an address that includes `host` or is
    included. Port 0 is never taken."""
    if BIND_REFUSES_ALL or not port:
        return False
    address = _ALL_ADDRESSES.get(host, host), port
    with contextlib.suppress(OSError), socket.create_connection(address, _CONNECT_SECONDS) as probe:
        return bool(probe.getsockname() != probe.getpeername())  # where nobody listens, one may connect to itself
    return False
