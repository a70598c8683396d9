"""Errors as clients of each API read them.

Source: OpenAI API reference, "Error codes"; Anthropic API, "Errors".
"""

from __future__ import annotations

import orjson

ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_OPENAI_TYPES = {status: ANTHROPIC_TYPES[status] for status in (400, 401, 403, 404, 429)}
_QUOTA = "insufficient_quota"  # type and code alike


def openai_error(message: str, status: int, code: str = "") -> bytes:
    """OpenAI's error object; `code` is a word for programs, as `no_route`."""
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    kind = _QUOTA if code == _QUOTA else kind
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code or None}})


def anthropic_error(message: str, status: int, request_id: str = "") -> bytes:
    """Anthropic's error object."""
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    error = {"type": kind, "message": message}
    return orjson.dumps({"type": "error", "error": error, "request_id": request_id or None})
