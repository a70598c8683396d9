"""The roles that endpoints of the admin API require, as in `caller: Operator`, and the middleware that identifies
callers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as Refusal
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.access import Access
from gateway.admin.api_keys import SCOPE_KINDS, Caller, Role

_KINDS = {f"{kind}s": kind for kind in SCOPE_KINDS}
_BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="A key of the keys file (`pointsman keys add`); without such a file, that in `admin.key` of the "
    "gateway's data folder. HTTP Basic with the key as password does, too.",
)


def _requires(role: Role) -> Callable[..., Caller]:
    """The dependency of an endpoint for callers of a role. Raises: HTTPException."""

    def caller(request: Request, _: Annotated[object, Security(_BEARER)] = None) -> Caller:
        caller: Caller | None = getattr(request.state, "caller", None)
        if caller is None:
            raise HTTPException(401, "this needs a key", {"www-authenticate": "Bearer"})
        if caller.role < role:
            raise HTTPException(403, f"this needs a key of role {role.name}; {caller.name!r} is {caller.role.name}")
        if role > Role.viewer and not caller.may_change(*_subject(request)):
            scope = ", ".join(map(str, caller.scope))
            raise HTTPException(403, f"this is not in the scope of the key of {caller.name!r}: {scope}")
        return caller

    return caller


def _subject(request: Request) -> tuple[str | None, str]:
    """What a call is about, by its path: `/engines/cuda/...`."""
    section = request.scope["route"].path.split("/")[1]
    return _KINDS.get(section), str(request.path_params.get("name", ""))


# A viewer reads. An operator runs the fleet: drains, loads, moves, ramps, cancels. An admin changes what is declared
# (rules, endpoints, limits) and reads the audit.
viewer, operator, admin = map(_requires, Role)
Viewer = Annotated[Caller, Depends(viewer)]
Operator = Annotated[Caller, Depends(operator)]
Admin = Annotated[Caller, Depends(admin)]


class AuthMiddleware:
    """Puts the caller in `request.state.caller`."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = scope["client"][0] if scope.get("client") else ""
        try:
            is_private = scope.get("state", {}).get("is_private", False)
            port = (scope.get("server") or ("", 0))[1] or 0  # of the connection; `Host` is the caller's choice
            caller = await self._access.admit(
                scope["path"], Headers(scope=scope), peer, port=port, is_private=is_private
            )
        except Refusal as refused:
            reply = JSONResponse({"detail": refused.detail}, refused.status_code, refused.headers)
            await reply(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["caller"] = caller
        if caller is not None and "admitted" in state:  # not by a test
            state["admitted"]()
        await self._app(scope, receive, send)
