"""The page of the admin port: files, as they lie in `page/`. They are for whoever reaches the port, and hold nothing of
the gateway; all that the page tells it asks of the admin API, with its reader's key."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

_PAGE = Path(__file__).with_name("page")

# Nothing from elsewhere, nothing inline, no frame around it: a name that a caller has made up cannot become a script.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # asked for anew, so that a page is never older than its gateway
}


class _Assets(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(_HEADERS)
        return response


def add_page(app: FastAPI) -> None:
    """Answer for `/` and `/assets`."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_PAGE / "index.html", headers=_HEADERS)

    app.mount("/assets", _Assets(directory=_PAGE / "assets"))
