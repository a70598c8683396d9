"""What an audit may keep of a call: all but secrets, and of long texts their length and digest."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import orjson

Json = Any

_CUT = "***"
_MAX_TEXT = 1000
_MAX_ITEMS = 100
_MAX_DEPTH = 12

# "max_tokens" and "requests_per_second" are no secrets; "api_key", "x-token" and "authorization" are.
_WORDS = r"(?:api)?(?:key|token|secret|password|passwd|authorization|cookie|credentials?)"
_SECRET = re.compile(rf"(?:^|[-_.]){_WORDS}$", re.IGNORECASE)
# The same inside of a text, as of a rule file: the rest of the line goes, and of a block of text what is indented.
_LINE = re.compile(
    rf"((?<![A-Za-z0-9]){_WORDS}[\"']?\s*[:=]\s*)(?=\S)(?:[>|][^\r\n]*(?:\r?\n[ \t]+[^\r\n]*)+|[^\r\n]*)", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer|basic)\s+\S+", re.I)
_OUR_KEY = re.compile(r"\bpm-[0-9a-f]{8}-[A-Za-z0-9_-]+")
_IN_URL = re.compile(r"(\w+://)[^/\s@]+@")


def body_cut(body: bytes, is_whole: bool) -> Json:
    """A call's body: as JSON where it is that, else as text; null where there is none."""
    if not body:
        return None
    if is_whole:
        try:
            return cut(orjson.loads(body))
        except ValueError:
            pass
    return cut(body[: 2 * _MAX_TEXT].decode("utf-8", "replace") + ("" if is_whole else " ..."))


def query_cut(query: bytes) -> dict[str, str]:
    """A call's query."""
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    told: dict[str, str] = cut(dict(pairs[:_MAX_ITEMS]))
    return told


def expected_cut(name: str, expected: Json) -> Json:
    """What a rule wants of a header or a parameter of this name: keys that it compares with are secrets, too."""
    if not _SECRET.search(name):
        return expected
    return _CUT if isinstance(expected, str) else [_CUT]


def cut(value: Json, depth: int = 0) -> Json:
    """A JSON value without its secrets."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
        return {_text(name): _CUT if _SECRET.search(name) and item else cut(item, depth + 1) for name, item in items}
    if isinstance(value, list):
        return [cut(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return _text(value) if isinstance(value, str) else value


def _text(text: str) -> str:
    if len(text) > _MAX_TEXT:
        digest = sha256(text.encode(errors="surrogatepass")).hexdigest()
        return f"<{len(text)} characters, sha256 {digest[:16]}>"
    return text_cut(text)


def text_cut(text: str) -> str:
    """A text, as of a rule file, without what stands behind words that name secrets."""
    for pattern, instead in ((_LINE, r"\1" + _CUT), (_BEARER, r"\1 " + _CUT), (_OUR_KEY, _CUT), (_IN_URL, r"\1***@")):
        text = pattern.sub(instead, text)
    return text
