"""Reads JSON for rules: all that engines read, and nothing of which two engines read different things.

Triton's parser, RapidJSON, takes NaN and Infinity and a byte order mark, and so do those of Python's engines; Python's
clients write the former. Where a key comes twice RapidJSON finds the first, orjson and Python keep the last.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import orjson

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_KEY_ENDS = re.compile(rb'"[ \t\r\n]*+:')
# Escapes of what the end of a key consists of: a writer would spell them out.
_ESCAPED_ENDS = re.compile(rb"\\u00(?:2[02]|3[aA])")
_SURROGATES = re.compile(r"\\u[dD][89a-fA-F]")
# RapidJSON takes these two spellings too, which no writer of JSON uses. A string that does not end is one up to the
# end: where its match could fail, the search would restart at each of its quotes.
_SPELLINGS = re.compile(r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|Inf(?!inity)|-NaN')
_STANDARD = {"Inf": "Infinity", "-NaN": "NaN"}


def read_json(body: bytes, check: Callable[[Any], None] | None = None) -> Any:
    """The value of a JSON text. `check` sees it before its keys are looked at, and may raise.

    Raises: ValueError where it is none, or has an object with a key twice.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if body.startswith(_BYTE_ORDER_MARK):
            return read_json(body[len(_BYTE_ORDER_MARK) :], check)
        if b"NaN" not in body and b"Inf" not in body:
            raise ValueError(str(error)) from None
        value = _read_numbers(body)
        if check is not None:
            check(value)
        return value
    if check is not None:
        check(value)
    num_keys = _count_keys(value)
    if body.count(b":") == num_keys:  # usual where no text has one
        return value
    num_ends = len(_KEY_ENDS.findall(body))
    if num_ends != num_keys and not _is_written_alike(body, value, num_ends):
        return _parsed(body.decode())
    return value


def with_standard_numbers(text: str) -> str:
    """JSON with Python's spellings of the numbers that RapidJSON takes."""
    if "Inf" in text or "-NaN" in text:
        return _SPELLINGS.sub(lambda found: _STANDARD.get(found[0], found[0]), text)
    return text


def _read_numbers(body: bytes) -> Any:
    text = body.decode()  # UnicodeDecodeError is a ValueError
    value = _parsed(with_standard_numbers(text))
    if _SURROGATES.search(text):  # lone ones, which no text in UTF-8 has, would be an error later
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _parsed(text: str) -> Any:
    """The value by a parser that sees each key. Raises: ValueError."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {twice[:80]!r} stands twice in an object, of which engines read different ones")
    return found


def _count_keys(value: Any) -> int:
    """The keys of a document; not those in lists that begin with something else than an object."""
    count, found = 0, [value] if type(value) is dict else []
    for item in found:  # which grows meanwhile
        count += len(item)
        for each in item.values():
            if type(each) is dict:
                found.append(each)
            elif type(each) is list and each and type(each[0]) is dict:
                found += [member for member in each if type(member) is dict]
    return count


def _is_written_alike(body: bytes, value: Any, num_ends: int) -> bool:
    """Whether the document, written, has as many ends of keys, in texts too: a key that came twice is gone from it."""
    if _ESCAPED_ENDS.search(body):
        return False
    try:
        return num_ends == len(_KEY_ENDS.findall(orjson.dumps(value)))
    except orjson.JSONEncodeError:  # nested too deep for its writer
        return False
