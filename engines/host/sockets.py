"""Sockets that a server is to listen on: bound long before, so that a port in use is known before models are loaded."""

from __future__ import annotations

import errno
import os
import socket

from gateway.net import ports

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
        if ports.is_taken(str(address[0]), port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port just left may be taken again at once
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
