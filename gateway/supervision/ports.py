"""Ports, taken once for all workers."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from gateway.config.settings import Settings
from gateway.net import sockets

_log = logging.getLogger("pointsman")

# Linux spreads connections over all sockets that listen on a port with SO_REUSEPORT; elsewhere one of them gets all,
# so there the workers share a single socket.
WORKERS_BIND = sys.platform == "linux"
# The address by which this host reaches a port that listens on every address.
_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class InferencePort:
    """This gateway's own inference port, as its host reaches it."""

    url: str
    requires_certificates: bool = False  # of its clients

    @classmethod
    def of(cls, settings: Settings, port: int) -> InferencePort:
        """The port that is open by these settings."""
        host = _LOOPBACKS.get(settings.host, settings.host)
        scheme = "http" if settings.tls is None else "https"
        bracketed = f"[{host}]" if ":" in host else host
        return cls(f"{scheme}://{bracketed}:{port}", settings.tls is not None and settings.tls.requires_certificates)


class PortError(Exception):
    """A port that cannot be used; the message names it and the cure."""


def listen(host: str, port: int, option: str) -> socket.socket:
    """A socket that listens for this process alone.

    Raises: PortError.
    """
    _refuse_if_answered(host, port, option)
    listener = _socket(host)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise _refusal(error, host, port, option) from error
    return listener


class PrivateSocket:
    """A Unix socket that listens for this user alone, until it is closed."""

    def __init__(self, path: Path, listener: socket.socket) -> None:
        self.socket = listener
        self._path = path

    @classmethod
    def listen(cls, path: Path | None) -> PrivateSocket | None:
        """None where there can be none: the path is too long, its folder cannot be written, or another gateway listens
        there."""
        if path is None:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                if probe.connect_ex(str(path)) == 0:
                    raise OSError(errno.EADDRINUSE, "another gateway listens there")
            path.unlink(missing_ok=True)  # left by a crash
            listener.bind(str(path))
            path.chmod(0o600)  # before it listens
            listener.listen()
        except OSError as error:
            listener.close()
            _log.debug("there is no socket %s: %s", path, error)
            return None
        return cls(path, listener)

    def close(self) -> None:
        self.socket.close()
        self._path.unlink(missing_ok=True)


class ReservedPort:
    """A port that is reserved until it is closed: port 0 is resolved once, and stays ours between two workers.

    `listener` is the socket that workers inherit where they do not bind themselves. `inherited` is a listening socket
    of the gateway before this one, which serves on the port until it drains.
    """

    def __init__(self, host: str, port: int, option: str, *, inherited: socket.socket | None = None) -> None:
        if inherited is not None and not WORKERS_BIND:
            self._socket = inherited.dup()
        else:
            if inherited is None:
                self._refuse_if_taken(host, port, option)
            self._socket = _socket(host)
            if WORKERS_BIND:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(self._socket, host, port, option)
        self.address: tuple[object, ...] = self._socket.getsockname()
        self.port: int = self._socket.getsockname()[1]
        self.listener: socket.socket | None = None
        if not WORKERS_BIND:
            self._socket.listen(4096)
            self.listener = self._socket

    def close(self) -> None:
        self._socket.close()

    @classmethod
    def _refuse_if_taken(cls, host: str, port: int, option: str) -> None:
        """With SO_REUSEPORT a second gateway of this user would silently share the port, with its own rules."""
        if port:
            _refuse_if_answered(host, port, option)
            with _socket(host) as probe:
                _bind(probe, host, port, option)


def _refuse_if_answered(host: str, port: int, option: str) -> None:
    if sockets.is_taken(host, port):
        raise _refusal(OSError(errno.EADDRINUSE, ""), host, port, option)


def _bind(taker: socket.socket, host: str, port: int, option: str) -> None:
    try:
        taker.bind((host, port))
    except OSError as error:
        raise _refusal(error, host, port, option) from error


def _refusal(error: OSError, host: str, port: int, option: str) -> PortError:
    if error.errno == errno.EADDRINUSE:
        return PortError(f"port {port} on {host} is in use; stop who uses it, or choose another with {option}")
    if error.errno == errno.EACCES:
        return PortError(f"port {port} needs more rights than this user has; choose one above 1023 with {option}")
    return PortError(f"cannot listen on {host}:{port}: {error.strerror or error}")


def _socket(host: str) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener
