"""Sign-in links of the page: a one-time token, exchanged for the key of a browser session."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from gateway.admin.access import Access
from gateway.admin.auth import Admin
from gateway.admin.local_key import LocalKey

Json = dict[str, Any]

_NO_LINKS: dict[int | str, dict[str, Any]] = {404: {"description": "the gateway has a keys file"}}
_LASTING: dict[int | str, dict[str, Any]] = {403: {"description": "the caller's key is one of a session"}}
_USED: dict[int | str, dict[str, Any]] = {410: {"description": "the token is used, or has expired"}}


class SignIn(BaseModel):
    """The token of a link."""

    token: Annotated[str, Field(min_length=1, max_length=200)]


def add_sign_in(app: FastAPI, access: Access) -> None:
    @app.post("/sign-in-tokens", tags=["gateway"], responses=_NO_LINKS | _LASTING)
    async def make_token(caller: Admin) -> Json:
        """A token that signs a browser in once, as `/#token=TOKEN`."""
        key = _local(access)
        if caller.expires is not None:  # else whoever gets such a key has sessions without end
            raise HTTPException(
                403,
                "the key of a session or of a command makes no sign-in link: ask by the gateway's Unix socket "
                "(pointsman page --data-dir), or with the key in its admin.key (POINTSMAN_ADMIN_KEY)",
            )
        token, seconds = key.make_token()
        return {"token": token, "seconds": seconds}

    @app.post("/sign-in", tags=["gateway"], responses=_NO_LINKS | _USED)
    async def sign_in(body: SignIn) -> Json:
        """The key of a session, for a token that has not been used."""
        session = _local(access).open_session(body.token)
        if session is None:
            raise HTTPException(410, "this link has been used, or has expired: `pointsman page` prints a new one")
        key, seconds = session
        return {"key": key, "seconds": seconds}


def _local(access: Access) -> LocalKey:
    """Raises: HTTPException."""
    if access.local is None:
        raise HTTPException(404, "this gateway has a keys file: enter a key on the page")
    return access.local
