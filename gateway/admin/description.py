"""The OpenAPI document of the admin API, which does not depend on a gateway's state."""

from __future__ import annotations

from typing import Any, cast

from gateway.admin.access import Access
from gateway.admin.app import make_app
from gateway.admin.local_key import LocalKey
from gateway.supervision.control_plane import ControlPlane


class _NoGateway:
    """In the place of a gateway and its parts, which only calls to the API use."""

    def __getattr__(self, name: str) -> _NoGateway:
        return self

    def __call__(self, *_: object, **__: object) -> _NoGateway:
        return self


def admin_document() -> dict[str, Any]:
    """The document that a gateway serves at `/openapi.json`."""
    return make_app(cast(ControlPlane, _NoGateway()), Access(LocalKey(""))).openapi()
