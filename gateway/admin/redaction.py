"""Redaction of what the audit and viewers see: secrets are removed, long texts become a length and a digest."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl

import orjson
from yaml import MappingNode, Node, ScalarNode, SequenceNode, YAMLError

from gateway.protocol.credentials import CREDENTIAL_IN_TEXT, is_credential
from gateway.yaml.nodes import compose

Json = Any
Digest = Callable[[str], str]  # of a session

_REDACTED = "***"
_HEADERS = "headers"  # that an engine gets: any of them may be a credential
_MAX_TEXT = 1000
_MAX_ITEMS = 100
_MAX_DEPTH = 12

# Behind the name of a credential the rest of the line is removed, and of a block scalar all indented lines.
_LINE = re.compile(
    rf"({CREDENTIAL_IN_TEXT}\\*[\"']?\s*[:=]\s*)(?=\S)"
    r"(?:[>|][^\r\n]*(?:\r?\n[ \t]+[^\r\n]*)+|[^\r\n]*)"
)
_COMMENT = re.compile(r"#[^\r\n]*")
# What has letters and digits and is this long may be a key, whatever stands before it.
_WORD = re.compile(r"[A-Za-z0-9_+=-]{16,}")
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


def redacted_decision(decision: Json, session_header: str, digest: Digest) -> Json:
    """A recorded decision as viewers see it: with digests for sessions, by whose names conversations go on."""
    session = decision.get("session")
    if "facts" in decision:
        decision = {**decision, "facts": _without_session(decision["facts"], session, session_header, digest)}
    decision = _without_session(decision, session, session_header, digest)
    return {**decision, "session": digest(session)} if session else decision


def _without_session(fields: Json, session: str | None, header: str, digest: Digest) -> Json:
    """The same with a digest for the session in its headers and parameters."""
    return fields | {
        kind: {
            name: digest(value) if isinstance(value, str) and (value == session or name == header) else value
            for name, value in fields[kind].items()
        }
        for kind in ("header", "parameter")
        if kind in fields
    }


def redacted_query(query: bytes) -> dict[str, str]:
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True)
    fields: dict[str, str] = redacted(dict(pairs[:_MAX_ITEMS]))
    return fields


def redacted_condition(name: str, expected: Json) -> Json:
    """The value that a rule expects of a header or a parameter: a key to compare with is a secret, too."""
    if not is_credential(name):
        return expected
    return _REDACTED if isinstance(expected, str) else [_REDACTED]


def redacted(value: Json, depth: int = 0) -> Json:
    """A JSON value without its secrets."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
        return {
            _text(name): _REDACTED if is_credential(name) and item else redacted(item, depth + 1)
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


def redacted_rules(text: str) -> str:
    """The text of a rule file without the values of keys that name secrets, and of headers for engines, however YAML
    writes them: block scalars, lists, anchors, lines that go on."""
    text = text.removeprefix("\ufeff")
    try:
        root = compose(text)
    except YAMLError:
        return "# not shown: this text is no YAML, so what is secret in it is not known\n"
    spans: set[tuple[int, int]] = set()
    if root is not None:
        _add_spans(root, False, spans, set())
    for start, end in sorted(spans, reverse=True):
        end = start + len(text[start:end].rstrip())
        text = text[:start] + _REDACTED + text[end:]
    return _without_keys(_COMMENT.sub(lambda comment: _redacted_comment(comment[0]), text))


def _redacted_comment(comment: str) -> str:
    """A comment without what may be keys: nothing says what its words are."""
    return _WORD.sub(lambda word: _REDACTED if _mixes(word[0]) else word[0], redacted_text(comment))


def _mixes(word: str) -> bool:
    return any(map(str.isdigit, word)) and any(map(str.isalpha, word))


def _add_spans(node: Node, is_secret: bool, spans: set[tuple[int, int]], seen: set[tuple[int, bool]]) -> None:
    """Add where the text has the secret scalars below a node. An alias is the node that it names."""
    if (id(node), is_secret) in seen:
        return
    seen.add((id(node), is_secret))
    if isinstance(node, ScalarNode):
        if is_secret and node.end_mark.index > node.start_mark.index:
            spans.add((node.start_mark.index, node.end_mark.index))
    elif isinstance(node, SequenceNode):
        for item in node.value:
            _add_spans(item, is_secret, spans, seen)
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            name = key.value if isinstance(key, ScalarNode) else ""
            _add_spans(value, is_secret or name == _HEADERS or is_credential(name), spans, seen)


def redacted_text(text: str) -> str:
    """A text without the values that follow names of secrets."""
    return _without_keys(_LINE.sub(r"\1" + _REDACTED, text))


def _without_keys(text: str) -> str:
    """A text without what is a key by its own form."""
    text = _OUR_KEY.sub(_REDACTED, _BEARER.sub(r"\1 " + _REDACTED, text))
    return _IN_URL.sub(r"\1***@", text)
