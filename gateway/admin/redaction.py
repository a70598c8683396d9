"""Redaction of what the audit and viewers see: secrets are removed, long texts become a length and a digest."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import orjson

Json = Any

_REDACTED = "***"
_MAX_TEXT = 1000
_MAX_ITEMS = 100
_MAX_DEPTH = 12

# "max_tokens" and "requests_per_second" are no secrets; "api_key", "x-token" and "authorization" are.
_WORDS = r"(?:api)?(?:key|token|secret|password|passwd|authorization|cookie|credentials?)"
_SECRET = re.compile(rf"(?:^|[-_.]){_WORDS}$", re.IGNORECASE)
# The same inside a text such as a rule file: the rest of the line is removed, and of a block scalar all indented lines.
_LINE = re.compile(
    rf"((?<![A-Za-z0-9]){_WORDS}[\"']?\s*[:=]\s*)(?=\S)(?:[>|][^\r\n]*(?:\r?\n[ \t]+[^\r\n]*)+|[^\r\n]*)", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer|basic)\s+\S+", re.I)
_OUR_KEY = re.compile(r"\bpm[is]?-[0-9a-f]{8,12}-[A-Za-z0-9_-]+")
_IN_URL = re.compile(r"(\w+://)[^/\s@]+@")


def redacted_body(body: bytes, is_complete: bool) -> Json:
    """A call's body as JSON where it parses, else as text; None where it is empty."""
    if not body:
        return None
    if is_complete:
        try:
            return redacted(orjson.loads(body))
        except ValueError:
            pass
    return redacted(body[: 2 * _MAX_TEXT].decode("utf-8", "replace") + ("" if is_complete else " ..."))


def redacted_query(query: bytes) -> dict[str, str]:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    fields: dict[str, str] = redacted(dict(pairs[:_MAX_ITEMS]))
    return fields


def redacted_condition(name: str, expected: Json) -> Json:
    """The value that a rule expects of a header or a parameter: a key to compare with is a secret, too."""
    if not _SECRET.search(name):
        return expected
    return _REDACTED if isinstance(expected, str) else [_REDACTED]


def redacted(value: Json, depth: int = 0) -> Json:
    """A JSON value without its secrets."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
        return {
            _text(name): _REDACTED if _SECRET.search(name) and item else redacted(item, depth + 1)
            for name, item in items
        }
    if isinstance(value, list):
        return [redacted(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    if len(text) > _MAX_TEXT:
        digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
        return f"<{len(text)} characters, sha256 {digest[:16]}>"
    return redacted_text(text)


def redacted_text(text: str) -> str:
    """A text such as a rule file without the values that follow names of secrets."""
    for pattern, replacement in (
        (_LINE, r"\1" + _REDACTED),
        (_BEARER, r"\1 " + _REDACTED),
        (_OUR_KEY, _REDACTED),
        (_IN_URL, r"\1***@"),
    ):
        text = pattern.sub(replacement, text)
    return text
