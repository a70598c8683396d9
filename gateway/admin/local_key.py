"""The admin key of a gateway without a keys file: made at its first start, in a file that only its user can read."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import socket
import stat
from collections import OrderedDict
from ipaddress import ip_address
from pathlib import Path
from time import time

from gateway.admin.api_keys import Caller, Role, id_of

_log = logging.getLogger("pointsman")

# Its role is admin, its id empty: whoever has it is this gateway's user, who says who acts (`by` of a drain).
LOCAL = Caller("local", Role.admin)

_NAME = "admin.key"
_MAX_BYTES = 1024
# The moment of its end and, in the key of a command, the port at which alone it is valid; and the signature of these.
_SESSION = re.compile(r"pms-(([0-9]{1,12})(?:-([0-9]{1,5}))?)-([0-9a-f]{64})")
_SESSION_SECONDS = 12 * 3600
_COMMAND_SECONDS = 60
_TOKEN_SECONDS = 600.0
_MAX_TOKENS = 100


class LocalKeyError(Exception):
    """A key file that cannot be used; the message names it and the reason."""


class _UselessKeyError(LocalKeyError):
    """A file of this user that holds no secret."""


class LocalKey:
    """The key, the browser sessions that it signs, and the one-time tokens that open them."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._tokens: OrderedDict[bytes, float] = OrderedDict()  # when each expires, by its sha256

    @classmethod
    def kept_in(cls, folder: Path) -> LocalKey:
        """The key of the gateways on this data folder, made by the first of them.

        Raises: LocalKeyError.
        """
        return cls(_kept_key(folder / _NAME))

    @classmethod
    def unkept(cls) -> LocalKey:
        """A key of this process alone."""
        return cls(_new_key())

    def caller(self, key: str, port: int = 0) -> Caller | None:
        """The owner of a key or of a session's key; None where it is unknown, has expired, or is for another port."""
        if hmac.compare_digest(key.encode(errors="surrogateescape"), self._key):
            return LOCAL
        match = _SESSION.fullmatch(key)
        if match is None or not hmac.compare_digest(self._signature(match[1]), match[4]):
            return None
        if match[3] is not None and int(match[3]) != port:
            return None
        return Caller(LOCAL.name, LOCAL.role, expires=float(match[2])) if time() < float(match[2]) else None

    def make_token(self) -> tuple[str, float]:
        """A token that opens one session, and the seconds for which it is valid. The oldest ones are forgotten."""
        token = secrets.token_urlsafe(32)
        self._tokens[_digest(token)] = time() + _TOKEN_SECONDS
        if len(self._tokens) > _MAX_TOKENS:
            self._tokens.popitem(last=False)
        return token, _TOKEN_SECONDS

    def open_session(self, token: str) -> tuple[str, float] | None:
        """The key of a new session, and the seconds for which it is valid; None where the token is unknown, used or
        expired."""
        if self._tokens.pop(_digest(token), 0.0) <= time():
            return None
        return self.make_session(_SESSION_SECONDS), _SESSION_SECONDS

    def make_session(self, seconds: int, port: int | None = None) -> str:
        """The key of a session that ends after these seconds, valid at one port alone where a port is given."""
        bounds = str(int(time() + seconds)) + (f"-{port}" if port is not None else "")
        return f"pms-{bounds}-{self._signature(bounds)}"

    def _signature(self, bounds: str) -> str:
        return hmac.new(self._key, b"session " + bounds.encode(), hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a name or an address belongs to this host alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def socket_path(folder: Path, port: int) -> Path:
    """The Unix socket of the gateway on a data folder whose admin API has this port."""
    return folder.absolute() / f"admin-{port}.sock"


def find_access(folder: Path, port: int) -> tuple[Path | None, str]:
    """How this user's commands reach a gateway on a data folder: by its Unix socket, which is no other user's, or with
    a key of one minute for that port alone, since another user may have it while the gateway is down; neither where
    the folder has no key, or another user's."""
    path = socket_path(folder, port)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if _is_own(path.lstat()):
                probe.connect(str(path))
                return path, ""
    except OSError:
        pass
    try:
        key = _read(folder / _NAME)
    except LocalKeyError:
        return None, ""
    return None, LocalKey(key).make_session(_COMMAND_SECONDS, port) if key is not None else ""


def _kept_key(path: Path) -> str:
    """Raises: LocalKeyError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:  # another gateway may be faster
            try:
                found = _read(path)
            except _UselessKeyError as error:
                _log.warning("%s, so it is replaced by a new one", error)
                path.unlink(missing_ok=True)
                continue
            if found is not None:
                return found
            _make(path)
    except OSError as error:
        raise LocalKeyError(f"{path} cannot be made: {error.strerror or error}") from error


def _read(path: Path) -> str | None:
    """The key in a file; None where there is none.

    Raises: LocalKeyError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalKeyError(f"{path} cannot be read: {error.strerror or error}") from error
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_own(status):
            raise LocalKeyError(f"{path} is not a file of this user")
        if status.st_mode & 0o077:
            raise _UselessKeyError(f"the key {path} can be read by other users")
        text = file.read(_MAX_BYTES).decode(errors="replace").strip()
    if id_of(text) is None:
        raise _UselessKeyError(f"{path} holds no key")
    return text


def sign_in_url(address: str, key: LocalKey) -> str:
    """A link to the page that signs in once: browsers send the fragment of a URL to no server."""
    return f"{address}/#token={key.make_token()[0]}"


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid()


def _make(path: Path) -> None:
    """Make the file, complete at once, unless there is one. Raises: OSError."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_new_key().encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        os.link(partial, path)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def _new_key() -> str:
    return f"pm-{secrets.token_hex(4)}-{secrets.token_urlsafe(32)}"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
