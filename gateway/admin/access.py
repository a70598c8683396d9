"""Who is admitted to the admin API.

1. Without a keys file one key admits, that of the gateway's user (`local_key`), and the API can be reached from this
   host alone: by TCP with the key, or by a Unix socket of this user without. Browsers run on this host, too: a request
   of a foreign page is refused by its Origin, and one to a name rebound to 127.0.0.1 by its Host.
2. With a keys file its keys admit.

A key is sent as `Authorization: Bearer KEY`, or as the password of HTTP Basic. What reveals nothing is open.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Mapping
from time import monotonic, time

from starlette.exceptions import HTTPException

from gateway.admin.api_keys import Caller, KeysError
from gateway.admin.keyring import Attempts, Keyring, TooManyAttemptsError
from gateway.admin.local_key import LOCAL, LocalKey, LocalKeyError, is_loopback
from gateway.config.settings import Settings
from gateway.supervision.redis_setup import data_dir_of

_log = logging.getLogger("pointsman")

# Liveness, and what a browser needs before it can prompt its user for a key.
_OPEN = frozenset({"/healthz", "/readyz", "/", "/openapi.json", "/openapi-inference.json", "/favicon.ico"})
_OPEN_BELOW = ("/assets/",)
_METRICS = "/metrics"
_SIGN_IN = "/sign-in"  # whose token admits
_OPEN_LOCALLY = {_METRICS, _SIGN_IN}
# A name or an address, and a port (RFC 3986, section 3.2.2).
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")


class AccessError(Exception):
    """Settings by which the admin API cannot be offered; the message names the cure."""


class Access:
    """Admits callers: those of a keys file, or the gateway's own user. /metrics is open on this host, and with
    `has_open_metrics` in front of a keys file, too."""

    def __init__(self, keys: Keyring | LocalKey, *, has_open_metrics: bool = False) -> None:
        self.keyring = keys if isinstance(keys, Keyring) else None
        self.local = keys if isinstance(keys, LocalKey) else None
        self._attempts = Attempts()
        self._open = _OPEN | ({_METRICS} if has_open_metrics else set()) | (_OPEN_LOCALLY if self.local else set())

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Raises: AccessError."""
        if settings.admin_keys is not None:
            try:
                keyring = Keyring(settings.admin_keys)
            except KeysError as error:
                raise AccessError(str(error)) from error
            if settings.admin_tls is None and not is_loopback(settings.admin_host):
                _log.warning("admin keys travel in clear text: serve with --admin-tls-cert and --admin-tls-key")
            return cls(keyring, has_open_metrics=settings.open_metrics)
        if not is_loopback(settings.admin_host):
            raise AccessError(
                f"--admin-host {settings.admin_host} would let others reach this gateway's own key: make one for each "
                "caller (pointsman keys add NAME --role admin --file keys.yaml) and serve with --admin-keys keys.yaml, "
                "or stay with --admin-host 127.0.0.1"
            )
        return cls(_local_key(settings))

    def holds(self, caller: Caller) -> bool:
        """Whether an admitted caller is still admitted."""
        if caller.expires is not None and caller.expires <= time():
            return False
        return self.keyring is None or self.keyring.holds(caller)

    async def admit(
        self, path: str, headers: Mapping[str, str], peer: str, *, port: int = 0, is_private: bool = False
    ) -> Caller | None:
        """The caller; None at an open path. `is_private`: by the Unix socket, which only this gateway's user can open;
        else by this port.

        Raises: HTTPException.
        """
        if is_private:
            return LOCAL
        if self.local is not None:
            _refuse_foreign_host(headers)
            _refuse_foreign_origin(headers)
        if path in self._open or path.startswith(_OPEN_BELOW):
            return None
        return await self._caller(headers, peer, port)

    async def _caller(self, headers: Mapping[str, str], peer: str, port: int) -> Caller:
        scheme, key = _credentials(headers)
        if not key:
            raise HTTPException(
                401,
                "this needs a key: Authorization: Bearer KEY, or HTTP Basic with the key as password",
                {"www-authenticate": "Bearer"},
            )
        if scheme == "basic":  # which a browser may send by itself
            _refuse_foreign_origin(headers)
        try:
            if self.keyring is not None:
                caller = await self.keyring.caller(key, peer)
            else:
                caller = self._local_caller(key, peer, port)
        except TooManyAttemptsError as error:
            raise HTTPException(429, str(error), {"retry-after": f"{error.seconds + 1:.0f}"}) from error
        except KeysError as error:  # its lines quote the file, so they go to the log only
            raise HTTPException(503, "the keys file cannot be used now; the gateway's log says why") from error
        if caller is None:
            raise HTTPException(401, "this key is not known here", {"www-authenticate": 'Bearer error="invalid_token"'})
        if not self.holds(caller):
            raise HTTPException(401, "this key has expired", {"www-authenticate": 'Bearer error="invalid_token"'})
        return caller

    def _local_caller(self, key: str, peer: str, port: int) -> Caller | None:
        """Raises: TooManyAttemptsError."""
        assert self.local is not None
        caller = self.local.caller(key, port)
        if caller is None:
            self._attempts.check(peer, "", monotonic())
            self._attempts.count(peer, "", monotonic())
            _log.warning("a wrong key of the admin API came from %s", peer)
        return caller


def _local_key(settings: Settings) -> LocalKey:
    folder = data_dir_of(settings)
    try:
        if folder is None:
            raise LocalKeyError("this user has no home directory")
        return LocalKey.kept_in(folder)
    except LocalKeyError as error:
        _log.warning(
            "the admin API has a key for this run alone, which no command can read: %s; choose another --data-dir, or "
            "make keys (pointsman keys add) and serve with --admin-keys",
            error,
        )
        return LocalKey.unkept()


def _credentials(headers: Mapping[str, str]) -> tuple[str, str]:
    """The scheme of Authorization in lower case, and the key; empty where there is none. Basic has it as password, or
    alone as user name."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    scheme, value = scheme.lower(), value.strip()
    if scheme == "bearer":
        return scheme, value
    if scheme != "basic":
        return scheme, ""
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return scheme, ""
    return scheme, password or user


def _refuse_foreign_host(headers: Mapping[str, str]) -> None:
    """Raises: HTTPException."""
    host = headers.get("host", "")
    match = _HOST.fullmatch(host)
    if match is None or not is_loopback(match[1] or match[2]):
        raise HTTPException(
            403, f"this admin API has no keys file, so it answers to names of this host alone, and {host!r} is none"
        )


def _refuse_foreign_origin(headers: Mapping[str, str]) -> None:
    """Raises: HTTPException."""
    origin = headers.get("origin")
    if origin is not None and origin.rpartition("//")[2] != headers.get("host", ""):
        raise HTTPException(403, "a web page elsewhere may not ask for this")
