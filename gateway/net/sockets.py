"""Sockets that a server listens on, and whether a peer has closed its side."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import termios

# With SO_REUSEADDR, Linux refuses to bind to a port that is listened on. BSDs and macOS refuse only the same address: a
# server binds to 127.0.0.1:8000 beside one on all addresses, and takes its clients of this machine.
BIND_REFUSES_ALL = sys.platform == "linux"

# A read of so much was not the last of what waits: uvloop reads on, up to 32 times 256 KB, before others have a turn.
TURN_BYTES = 200_000

_CONNECT_SECONDS = 0.5
_ALL_ADDRESSES = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


def is_taken(host: str, port: int) -> bool:
    """Whether the port is listened on where bind(2) does not refuse: at an address that includes `host` or is included.
    Port 0 is never taken."""
    if BIND_REFUSES_ALL or not port:
        return False
    address = _ALL_ADDRESSES.get(host, host), port
    with contextlib.suppress(OSError), socket.create_connection(address, _CONNECT_SECONDS) as probe:
        return bool(probe.getsockname() != probe.getpeername())  # without a listener, a socket may connect to itself
    return False


# Connections that wait to be accepted.
BACKLOG = 2048


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, of IPv4 where the name has both; port 0 is a free one. Raises: OSError
    where the address is taken, or is not of this machine."""
    addresses = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(addresses, key=lambda each: each[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        if is_taken(str(address[0]), port):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port may be reused right after its last server
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def arrivals_of(transport: asyncio.Transport) -> select.poll:
    """Tells, by `poll(0)`, whether the kernel has bytes or an end that the event loop has not read; of TLS, where these
    may be tickets of the session, never."""
    arrivals = select.poll()
    if transport.get_extra_info("sslcontext") is None:
        arrivals.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return arrivals


# Linux has a flag for a peer that sends no more; POLLHUP and POLLERR exist everywhere.
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def unacknowledged_bytes(transport: asyncio.BaseTransport) -> int | None:
    """What the system holds of what was written, since the peer has no room for it; None where it does not tell."""
    its = transport.get_extra_info("socket")
    if sys.platform != "linux" or its is None or its.fileno() < 0:
        return None
    try:
        return int(struct.unpack("i", fcntl.ioctl(its.fileno(), termios.TIOCOUTQ, bytes(4)))[0])
    except OSError:
        return None


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Whether the peer has closed, by the kernel: the event loop reports it only of transports that are read. Data may
    still wait to be read."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), _GONE)
    return bool(poll.poll(0))


# By system: macOS has TCP_KEEPALIVE for the time until the first probe, and the timeout of unread data by another name.
_KEEPALIVE_IDLE = getattr(socket, "TCP_KEEPIDLE", None) or getattr(socket, "TCP_KEEPALIVE", None)
_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)
_CONNECTION_DROP_SECONDS = 0x80 if sys.platform == "darwin" else None  # TCP_RXT_CONNDROPTIME
_KEEPALIVE_PROBES = 4


def keep_alive(transport: asyncio.BaseTransport, interval: float, timeout: float, *, ends_unread: bool) -> None:
    """Have the kernel probe a peer that is silent for `interval` seconds, and give it up `timeout` seconds later.
    `ends_unread`: also one that does not acknowledge or read what is sent to it for both together."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0 or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    values = [
        (_KEEPALIVE_IDLE, max(1, round(interval))),
        (getattr(socket, "TCP_KEEPINTVL", None), max(1, round(timeout / _KEEPALIVE_PROBES))),
        (getattr(socket, "TCP_KEEPCNT", None), _KEEPALIVE_PROBES),
    ]
    if ends_unread:
        values += [
            (_USER_TIMEOUT, round((interval + timeout) * 1000)),
            (_CONNECTION_DROP_SECONDS, max(1, round(interval + timeout))),
        ]
    with contextlib.suppress(OSError):  # the peer may have reset it
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in values:
            if option is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)


_RESETS = struct.pack("ii", 1, 0)


def reset(transport: asyncio.Transport) -> None:
    """Close at once, with a reset in place of an orderly end."""
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
    transport.abort()
