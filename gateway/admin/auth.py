"""Authentication and authorization of the admin API.

1. Without a keys file every caller is an admin, and the API can be reached from this host alone. Browsers run on this
   host, too: a request of a foreign page is refused by its Origin, and one to a name rebound to 127.0.0.1 by its Host.
2. With a keys file a call needs `Authorization: Bearer KEY`, which no foreign page has. What reveals nothing is open.

An endpoint names the role that it requires: `caller: Operator`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Security
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.admin.api_keys import ANONYMOUS, Caller, KeysError, Role
from gateway.admin.keyring import Keyring, TooManyAttemptsError
from gateway.config.settings import Settings

# Liveness, and what a browser needs before it can prompt its user for a key.
_OPEN = frozenset({"/healthz", "/", "/docs", "/openapi.json", "/favicon.ico"})
_OPEN_BELOW = ("/assets/",)
_METRICS = "/metrics"
# A name or an address, and a port (RFC 3986, section 3.2.2).
_HOST = re.compile(r"(?:\[([^\[\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")
# Rule files are the longest bodies.
_MAX_BODY_BYTES = 32 * 1024 * 1024
_BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="A key of the keys file (`pointsman keys add`). Without such a file the API listens on this host "
    "alone, and every caller is an admin.",
)


def _requires(role: Role) -> Callable[..., Caller]:
    """The dependency of an endpoint for callers of a role. Raises: HTTPException."""

    def caller(request: Request, _: Annotated[object, Security(_BEARER)] = None) -> Caller:
        caller: Caller | None = getattr(request.state, "caller", None)
        if caller is None:
            raise HTTPException(401, "this needs a key", {"www-authenticate": "Bearer"})
        if caller.role < role:
            raise HTTPException(403, f"this needs a key of role {role.name}; {caller.name!r} is {caller.role.name}")
        return caller

    return caller


# A viewer reads. An operator runs the fleet: drains, loads, moves, ramps, cancels. An admin changes what is declared
# (rules, endpoints, limits) and reads the audit.
viewer, operator, admin = map(_requires, Role)
Viewer = Annotated[Caller, Depends(viewer)]
Operator = Annotated[Caller, Depends(operator)]
Admin = Annotated[Caller, Depends(admin)]


class AccessError(Exception):
    """Settings by which the admin API cannot be offered; the message names the cure."""


class Access:
    """Admits callers. `hosts` are names of this host beside the loopback's own; with `has_open_metrics`, /metrics needs
    no key."""

    def __init__(
        self, keyring: Keyring | None = None, *, hosts: Iterable[str] = (), has_open_metrics: bool = False
    ) -> None:
        self.keyring = keyring
        self._hosts = frozenset(map(str.lower, hosts))
        self._open = _OPEN | ({_METRICS} if has_open_metrics else frozenset())

    @classmethod
    def of(cls, settings: Settings) -> Access:
        """Raises: AccessError."""
        if settings.admin_keys is not None:
            try:
                return cls(Keyring(settings.admin_keys), has_open_metrics=settings.open_metrics)
            except KeysError as error:
                raise AccessError(str(error)) from error
        if not is_loopback(settings.admin_host):
            raise AccessError(
                f"--admin-host {settings.admin_host} would let others change this gateway: make a key "
                "(pointsman keys add NAME --role admin --file keys.yaml) and serve with --admin-keys keys.yaml, "
                "or stay with --admin-host 127.0.0.1"
            )
        return cls()

    def holds(self, caller: Caller) -> bool:
        """Whether an admitted caller is still admitted."""
        return self.keyring is None or self.keyring.holds(caller)

    async def admit(self, path: str, headers: Headers, peer: str) -> Caller | None:
        """The caller; None at an open path.

        Raises: HTTPException.
        """
        if self.keyring is None:
            self._refuse_foreign(headers)
            return ANONYMOUS
        if path in self._open or path.startswith(_OPEN_BELOW):
            return None
        return await self._caller(self.keyring, headers, peer)

    def _refuse_foreign(self, headers: Headers) -> None:
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]) if match is not None else ""
        if name.lower() not in self._hosts and not is_loopback(name):
            raise HTTPException(
                403, f"this admin API has no keys, so it answers to names of this host alone, and {host!r} is none"
            )
        origin = headers.get("origin")
        if origin is not None and origin.rpartition("//")[2] != host:
            raise HTTPException(403, "a web page elsewhere may not ask for this")

    async def _caller(self, keyring: Keyring, headers: Headers, peer: str) -> Caller:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise HTTPException(401, "this needs a key: Authorization: Bearer KEY", {"www-authenticate": "Bearer"})
        try:
            caller = await keyring.caller(key.strip(), peer)
        except TooManyAttemptsError as error:
            raise HTTPException(429, str(error), {"retry-after": f"{error.seconds + 1:.0f}"}) from error
        except KeysError as error:  # its lines quote the file, so they go to the log only
            raise HTTPException(503, "the keys file cannot be used now; the gateway's log says why") from error
        if caller is None:
            raise HTTPException(401, "this key is not known here", {"www-authenticate": 'Bearer error="invalid_token"'})
        return caller


class AuthMiddleware:
    """Puts the caller in `request.state.caller`, and bounds bodies."""

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
        except HTTPException as refused:
            reply = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
            await reply(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, _bounded(receive), send)


def _bounded(receive: Receive) -> Receive:
    """Refuse a body that is too long while it is read."""
    size = 0

    async def received() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > _MAX_BODY_BYTES:
            raise HTTPException(413, f"the body is longer than {_MAX_BODY_BYTES} bytes")
        return message

    return received


def is_loopback(host: str) -> bool:
    """Whether a name or an address belongs to this host alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
