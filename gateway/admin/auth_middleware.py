"""Before any endpoint: who calls, and is it a browser that a page elsewhere has sent.

1. No keys file: whoever reaches the port is an admin, and it can be reached from this host alone. A browser is
   on this host, too, so a page from elsewhere is refused by its Origin, and one whose name was bound anew to
   127.0.0.1 by its Host.
2. A keys file: a key, `Authorization: Bearer KEY`, which no page elsewhere has. What tells nothing is open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.api_keys import KeysError
from gateway.admin.auth import ANONYMOUS, Caller
from gateway.admin.keyring import GuessingError, Keyring

# Whether the gateway lives, and what a browser needs before it can ask its user for a key.
_OPEN = frozenset({"/healthz", "/", "/docs", "/openapi.json", "/favicon.ico"})
_OPEN_BELOW = ("/assets/",)
_METRICS = "/metrics"
# A name or an address, and a port (RFC 3986, section 3.2.2).
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")
# Rule files are the longest that is sent here.
_MAX_BODY_BYTES = 32 * 1024 * 1024


class RefusedError(Exception):
    """A call that goes no further."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


class Access:
    """Who may come in. `hosts` are names of this host beside the loopback's own, `has_open_metrics`: they are told to
    who has no key, too."""

    def __init__(
        self, keyring: Keyring | None = None, *, hosts: Iterable[str] = (), has_open_metrics: bool = False
    ) -> None:
        self.keyring = keyring
        self._hosts = frozenset(map(str.lower, hosts))
        self._is_open = _OPEN | ({_METRICS} if has_open_metrics else frozenset())

    def __repr__(self) -> str:
        return f"<Access {self.keyring or 'of this host'}>"

    def holds(self, caller: Caller) -> bool:
        """Whether somebody who came in may stay."""
        return self.keyring is None or self.keyring.holds(caller)

    async def admit(self, path: str, headers: Headers, peer: str) -> Caller | None:
        """Who calls; None where that is not asked.

        Raises: RefusedError.
        """
        if self.keyring is None:
            self._refuse_foreign(headers)
            return ANONYMOUS
        if path in self._is_open or path.startswith(_OPEN_BELOW):
            return None
        return await self._caller(self.keyring, headers, peer)

    def _refuse_foreign(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            raise RefusedError(
                403, f"this admin API has no keys, so it answers to names of this host alone, and {host!r} is none"
            )
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("//")[2] != host:
            raise RefusedError(403, "a web page elsewhere may not ask for this")

    def _is_ours(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        name = (found[1] or found[2]) if found is not None else ""
        return name.lower() in self._hosts or is_loopback(name)

    async def _caller(self, keyring: Keyring, headers: Headers, peer: str) -> Caller:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise RefusedError(401, "this needs a key: Authorization: Bearer KEY", {"www-authenticate": "Bearer"})
        try:
            caller = await keyring.caller(key.strip(), peer)
        except GuessingError as error:
            raise RefusedError(429, str(error), {"retry-after": f"{error.seconds + 1:.0f}"}) from error
        except KeysError as error:  # whose lines are for the log: they tell of keys
            raise RefusedError(503, "the keys file cannot be used now; the gateway's log says why") from error
        if caller is None:
            raise RefusedError(401, "this key is not known here", {"www-authenticate": 'Bearer error="invalid_token"'})
        return caller


class AuthMiddleware:
    """The middleware; it leaves the caller in `request.state.caller`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        try:
            caller = await self._access.admit(scope["path"], Headers(scope=scope), peer)
        except RefusedError as refused:
            await answer(send, refused.status, {"detail": str(refused)}, refused.headers)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, _bounded(receive), send)


def _bounded(receive: Receive) -> Receive:
    """What reads a body reads no more of it than may be."""
    size = 0

    async def received() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is longer than {_MAX_BODY_BYTES} bytes")
        return message

    return received


async def answer(send: Send, status: int, body: Any, headers: Mapping[str, str]) -> None:
    """A whole reply of JSON."""
    text = orjson.dumps(body)
    fields = {"content-type": "application/json", "content-length": str(len(text)), **headers}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": text})


def is_loopback(host: str) -> bool:
    """Whether a name or an address is that of this host, and of nobody else's."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
