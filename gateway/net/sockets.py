"""Sockets that a server listens on, and whether a peer has closed its side."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
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


# Connections that wait to be taken.
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A socket at an address, of IPv4 where the name has both; port 0 is a free one. Nobody can connect to it yet.

    Raises: OSError where the address is taken, or none of this machine.
    """
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        if is_taken(str(address[0]), port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port just left may be taken again at once
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


# Linux has a flag of its own for a side that sends no more; POLLHUP and POLLERR are told everywhere.
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Ask the kernel. What the other side sent last may still wait to be read."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), _GONE)
    return bool(poll.poll(0))
