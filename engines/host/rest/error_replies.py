"""Errors as replies."""

from __future__ import annotations

import logging

from engines.core.errors import EngineError
from engines.host.rest.asgi_exchange import JSON, error_json
from engines.host.rest.compression import UnknownEncodingError
from engines.host.rest.request_head import Fields

_log = logging.getLogger(__name__)

_ACCEPTED = (b"accept-encoding", b"gzip, deflate")


def told(error: Exception, what: object) -> tuple[int, bytes, Fields]:
    """Status, body and fields that tell an error of `what`; one that nobody foresaw is logged."""
    if isinstance(error, UnknownEncodingError):
        return error.status.http, error_json(error.message), (JSON, _ACCEPTED)
    if isinstance(error, EngineError):
        return error.status.http, error_json(error.message), (JSON,)
    _log.error("%r failed", what, exc_info=error)
    return 500, error_json(f"the host failed: {type(error).__name__}"), (JSON,)
