"""Errors as clients of each API read them.

Source: OpenAI API reference, "Error codes"; Anthropic API, "Errors".
"""

from __future__ import annotations

import orjson

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_EVENT = b"data:"
_ANTHROPIC_TYPES = {
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


def openai_error(message: str, status: int, code: str = "") -> bytes:
    """OpenAI's error object; `code` is a word for programs, as `no_route`."""
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return orjson.dumps({"error": {"message": message, "type": kind, "param": None, "code": code or None}})


def anthropic_error(message: str, status: int) -> bytes:
    """Anthropic's error object."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return orjson.dumps({"type": "error", "error": {"type": kind, "message": message}})


def read_error(body: bytes) -> tuple[str, str]:
    """The message and the code of an engine's error body, whatever its API: OpenAI's and Anthropic's objects, V2's
    and TF Serving's text, FastAPI's `detail`; also as the one event of a stream that failed at once."""
    body = body.strip()
    if body.startswith(_EVENT):
        body = body.removeprefix(_EVENT).strip()
    try:
        told = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode("utf-8", "replace").strip()[:2000], ""
    found = told.get("error", told) if isinstance(told, dict) else told
    if isinstance(found, dict):
        message = found.get("message") or found.get("detail") or found.get("error")
        if message is not None:
            code = found.get("code") or found.get("type") or ""
            return message if isinstance(message, str) else orjson.dumps(message).decode(), str(code)
    return found if isinstance(found, str) else orjson.dumps(found).decode()[:2000], ""
