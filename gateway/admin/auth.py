"""Who calls the admin API, and what he may: dependencies that an endpoint names, `caller: Operator`.

`gateway.admin.auth_middleware` has identified the caller before; this module says what each role may do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer

from gateway.admin.api_keys import Role

_BEARER = HTTPBearer(
    auto_error=False,
    scheme_name="key",
    description="A key of the keys file (`pointsman keys add`). Without such a file the API listens on this host "
    "alone, and whoever asks is an admin.",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key a call came with; `id` is that of the key, empty where the gateway asks for none."""

    name: str
    role: Role
    id: str = ""


ANONYMOUS = Caller("anonymous", Role.admin)


def viewer(request: Request, _: Annotated[object, Security(_BEARER)] = None) -> Caller:
    """Whoever may read.

    Raises: HTTPException.
    """
    return _at_least(request, Role.viewer)


def operator(request: Request, _: Annotated[object, Security(_BEARER)] = None) -> Caller:
    """Whoever may run the fleet: drain, load, move, ramp, cancel.

    Raises: HTTPException.
    """
    return _at_least(request, Role.operator)


def admin(request: Request, _: Annotated[object, Security(_BEARER)] = None) -> Caller:
    """Whoever may change what is declared: rules, endpoints, limits; and read the audit.

    Raises: HTTPException.
    """
    return _at_least(request, Role.admin)


Viewer = Annotated[Caller, Depends(viewer)]
Operator = Annotated[Caller, Depends(operator)]
Admin = Annotated[Caller, Depends(admin)]


def caller_of(request: Request) -> Caller | None:
    """Who calls; None where the gate asks nobody who he is."""
    caller = getattr(request.state, "caller", None)
    assert caller is None or isinstance(caller, Caller)
    return caller


def _at_least(request: Request, role: Role) -> Caller:
    caller = caller_of(request)
    if caller is None:
        raise HTTPException(401, "this needs a key", {"www-authenticate": "Bearer"})
    if caller.role < role:
        raise HTTPException(403, f"this needs a key of role {role.name}; {caller.name!r} is {caller.role.name}")
    return caller
