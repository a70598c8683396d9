"""Ports, taken once for all workers."""

from __future__ import annotations

import errno
import socket
import sys

# Linux spreads connections over all sockets that listen on a port with SO_REUSEPORT; elsewhere one of them gets all,
# so there the workers share a single socket.
WORKERS_BIND = sys.platform == "linux"


class PortError(Exception):
    """A port cannot be had; the message says which, and what to do."""


class ReservedPort:
    """A port that is ours until it is closed, so that 0 is chosen once and nobody else takes it between two workers.

    `listener` is the socket that workers inherit where they do not bind themselves.
    """

    def __init__(self, host: str, port: int, option: str) -> None:
        self._refuse_if_taken(host, port, option)
        self._socket = _socket(host)
        if WORKERS_BIND:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._bind(self._socket, host, port, option)
        self.port: int = self._socket.getsockname()[1]
        self.listener: socket.socket | None = None
        if not WORKERS_BIND:
            self._socket.listen(4096)
            self.listener = self._socket

    def close(self) -> None:
        self._socket.close()

    @classmethod
    def _refuse_if_taken(cls, host: str, port: int, option: str) -> None:
        """With SO_REUSEPORT a second gateway of this user would share the port unseen, and answer by its own rules."""
        if port:
            with _socket(host) as probe:
                cls._bind(probe, host, port, option)

    @staticmethod
    def _bind(taker: socket.socket, host: str, port: int, option: str) -> None:
        try:
            taker.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                message = f"port {port} on {host} is in use; stop who uses it, or choose another with {option}"
            elif error.errno == errno.EACCES:
                message = f"port {port} needs more rights than this user has; choose one above 1023 with {option}"
            else:
                message = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise PortError(message) from error


def _socket(host: str) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return made
