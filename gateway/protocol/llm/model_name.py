"""The model that a JSON body names: found, and exchanged, without building the document.

A body that passes through untouched is read by somebody else's parser, so what is found here is the name that every
parser would find. Parsers differ where a key comes twice (the last or the first counts), is written with escapes
(`"\\u006dodel"`), or in another case (Go's takes `"Model"` for it, so Ollama does). So the quick ways are for bodies
that spell such a key once, and they see that it is a key of the outermost object:

  * `{"model": "name"` begins the body; or
  * what follows the key, up to the end, is the rest of one object. A quote with `model"` behind it never ends a string
    in JSON, so the reading is in step there, and a key further inside would leave brackets unclosed.

What stands before the key is not read: a body that is no JSON is left to the engine to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import orjson

from gateway.protocol.json_bounds import BOUNDS, JsonBounds
from gateway.protocol.json_reader import read_json
from gateway.protocol.llm.json_fields import bad_request, dumped

_STRING = rb'"((?:[^"\\]++|\\.)*+)"'
_HEAD = re.compile(rb'\s*+\{\s*+"model"\s*+:\s*+' + _STRING + rb"\s*+[,}]", re.DOTALL)
_KEY = b'"model"'
_BACKSLASH = ord("\\")
_FIELD = re.compile(_KEY + rb"\s*+:\s*+" + _STRING, re.DOTALL)
# The key, its value and the space around them, so that hostile ones cost nothing; for more, the document is built.
_MAX_FIELD_BYTES = 1024
# Every spelling of the key, with escapes for letters too.
_SPELLINGS = re.compile(
    rb'"(?:[mM]|\\u00[46][dD])(?:[oO]|\\u00[46][fF])(?:[dD]|\\u00[46]4)(?:[eE]|\\u00[46]5)(?:[lL]|\\u00[46][cC])"'
)
_FIRST_LETTERS = (b"m", b"M", b"\\")
# From this length on the key is searched from quote to quote, where these are at least so many bytes apart.
_LONG_BYTES = 16 * 1024
_BYTES_A_QUOTE = 256
# Keys that are counted in a long body; of one that holds more, the name is not known to be the only one.
_MAX_SPELLINGS = 1024
# The longest body that is written again because readers may differ on its model.
_MAX_REWRITTEN_BYTES = 256 * 1024
# Places looked at in a body that holds the key and the name many times: of a long one, where each costs a reading of
# the rest, so many from its end and from its start.
_MAX_PLACES = 16
_MAX_PLACES_OF_LONG = 2


class ModelName(NamedTuple):
    """The model's name, and where its bytes stand between the quotes.

    Where `start` is -1 the body must not go out as it is, because another reader might find another name in it:
    `renamed` rewrites it, with the same name if need be.
    """

    name: str
    start: int
    end: int

    @property
    def is_sure(self) -> bool:
        """Whether every reader of the body finds this name."""
        return self.start >= 0


# What follows the key is mostly the same for many requests of one client: `"model":"m","stream":true}`.
_MAX_TAIL_BYTES = 512
_MAX_TAILS = 1024
_tails: dict[bytes, ModelName] = {}  # by all from the key on, places counted from there


def find_model(body: bytes, bounds: JsonBounds = BOUNDS) -> ModelName | None:
    """The `model` of a JSON object; None where it has none that is a string, or the body is no such object.

    Raises: GatewayError(BODY_TOO_LARGE) where only the document would tell, and it has more values than `bounds` allow;
    (BAD_REQUEST) where a long body names it so that readers may differ.
    """
    num_spellings = _count_spellings(body, bounds)
    if not num_spellings:
        return None
    at = body.rfind(_KEY)
    if num_spellings == 1 and at > 0 and body[at - 1] != _BACKSLASH:
        tail = body[at:] if len(body) - at <= _MAX_TAIL_BYTES else b""
        known = _tails.get(tail)
        if known is not None:  # the usual case: what follows the key has been read before
            return ModelName(known.name, at + known.start, at + known.end)
    return _read(body, at, num_spellings, bounds)


def _count_spellings(body: bytes, bounds: JsonBounds) -> int:
    """How often the key stands in the body, in any spelling. Raises: GatewayError(BODY_TOO_LARGE), as `find_model`."""
    num_found, at = 0, 0
    if len(body) >= _LONG_BYTES:
        # A long body is mostly the text of prompts: from quote to quote is three times as fast as the expression.
        for _ in range(len(body) // _BYTES_A_QUOTE):
            at = body.find(b'"', at)
            if at < 0:
                return num_found
            found = _SPELLINGS.match(body, at) if body[at + 1 : at + 2] in _FIRST_LETTERS else None
            num_found += found is not None
            at = found.end() if found is not None else at + 1
        bounds.check_values(body)
        return num_found + sum(1 for _ in islice(_SPELLINGS.finditer(body, at), _MAX_SPELLINGS))
    return len(_SPELLINGS.findall(body))


def _read(body: bytes, at: int, num_spellings: int, bounds: JsonBounds) -> ModelName | None:
    """The same; its last plain key stands `at`, and keys stand there `num_spellings` times, at any depth, in any
    spelling, as values too.
    """
    if num_spellings == 1:
        found = _HEAD.match(body, 0, _MAX_FIELD_BYTES)
        if found is not None:
            return _named(found)
        bounds.check_values(body)
        if at >= 0 and (found := _field(body, at)) is not None:
            return _remembered(body, at, _named(found)) if _is_outermost(body, at) else None
    bounds.check_values(body)
    return _parsed(body, num_spellings)


def _remembered(body: bytes, at: int, found: ModelName | None) -> ModelName | None:
    if found is not None and len(body) - at <= _MAX_TAIL_BYTES:
        if len(_tails) >= _MAX_TAILS:
            _tails.clear()
        _tails[body[at:]] = ModelName(found.name, found.start - at, found.end - at)
    return found


def renamed(body: bytes, found: ModelName, new: str) -> bytes:
    """The body with another name of its model; `found` is what `find_model` says of the body."""
    if found.start >= 0:
        return body[: found.start] + orjson.dumps(new)[1:-1] + body[found.end :]
    fields = orjson.loads(body)
    return dumped({key: value for key, value in fields.items() if key.lower() != "model"} | {"model": new})


def _named(found: re.Match[bytes]) -> ModelName | None:
    raw = found[1]
    try:
        name = orjson.loads(b'"' + raw + b'"') if b"\\" in raw else raw.decode()
    except ValueError:  # of which both kinds of error are
        return None
    return ModelName(name, *found.span(1))


def _field(body: bytes, at: int) -> re.Match[bytes] | None:
    """The key that stands here, with the string that is its value."""
    if body[at - 1 : at] == b"\\":  # it is inside a string
        return None
    return _FIELD.match(body, at, at + _MAX_FIELD_BYTES)


def _is_outermost(body: bytes, at: int) -> bool:
    """Whether the key that stands here belongs to the outermost object, also by parsers that take NaN and Infinity."""
    text = b"{" + body[at:]
    return _is_json(text, orjson.loads) or ((b"NaN" in text or b"Infinity" in text) and _is_json(text, read_json))


def _is_json(text: bytes, parse: Callable[[bytes], object]) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _parsed(body: bytes, num_spellings: int) -> ModelName | None:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    name = fields.get("model") if isinstance(fields, dict) else None
    if not isinstance(name, str):
        return None
    span = _span(body, name) if _is_named_once(body, fields, num_spellings) else None
    if span is None and len(body) > _MAX_REWRITTEN_BYTES:
        what = f"a body of more than {_MAX_REWRITTEN_BYTES} bytes must name its 'model' once, as its first key"
        raise bad_request(what)
    return ModelName(name, *(span or (-1, -1)))


def _is_named_once(body: bytes, fields: dict[str, Any], num_spellings: int) -> bool:
    """Whether the key came once: one that came twice is gone from the document, and missing when that is written.

    A text with an escaped quote before `model` would be written so that it counts: then it is not known.
    """
    if num_spellings >= _MAX_SPELLINGS or b"\\u0022" in body or sum(key.lower() == "model" for key in fields) > 1:
        return False
    try:
        written = orjson.dumps(fields)
    except orjson.JSONEncodeError:  # nested too deep for its writer
        return False
    return num_spellings == written.count(_KEY) or num_spellings == written.lower().count(_KEY)


def _span(body: bytes, name: str) -> tuple[int, int] | None:
    """Where the name stands between its quotes in a body that is JSON; None where that is not plain to see."""
    if (found := _HEAD.match(body, 0, _MAX_FIELD_BYTES)) is not None:
        return found.span(1)
    places = [found for found in _fields(body) if _named(found) == (name, *found.span(1))]
    if len(body) > _MAX_REWRITTEN_BYTES:
        places = [*places[-_MAX_PLACES_OF_LONG:], *places[:_MAX_PLACES_OF_LONG]]
    for found in places[:_MAX_PLACES]:
        if _is_json(b"{" + body[found.start() :], orjson.loads):
            return found.span(1)
    return None


def _fields(body: bytes) -> Iterator[re.Match[bytes]]:
    """Where the key stands with a string as its value."""
    at = -1
    for _ in range(_MAX_SPELLINGS):
        at = body.find(_KEY, at + 1)
        if at < 0:
            return
        found = _field(body, at)
        if found is not None:
            yield found
