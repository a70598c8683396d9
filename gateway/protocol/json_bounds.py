"""Bounds on JSON that is read whole: what its document would take in memory and time is known before it is built.

A short body needs no check. For a longer one, the bytes that separate or open values are counted, at first in texts
too: never less than there are values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.json_reader import read_json

# Up to here, a body cannot hold more than a few milliseconds of work.
SHORT_BYTES = 64 * 1024
# The bytes that tell values and keys, and what each weighs: objects and arrays are the dearest.
_MARKS = ((b",", 1), (b":", 1), (b"[", 4), (b"{", 8))
_ITEM_MARKS = ((b",", 1), (b"{", 1))  # one at the least comes with each item
# Where messages, parts, calls, tools and tensors are: schemas and arguments are passed on as they are.
_HOLDERS = frozenset(
    {
        *("messages", "input", "content", "output", "parts", "system", "prompt", "stop", "stop_sequences"),
        *("tools", "functions", "tool_calls", "summary", "inputs", "outputs", "parameters", "metadata"),
    }
)
# Counted at a time, since too many are mostly found early.
_WINDOW_BYTES = 256 * 1024
# A body with more quotes, or more backslashes, is not looked at again without its texts.
_MAX_QUOTES = 50_000
_MAX_KEYS = 32  # of an object; more count as items
_COUNTED = frozenset({dict, list, str})


class JsonBounds(NamedTuple):
    """The most that a document may have: `values` and keys, where an object counts as eight and an array as four;
    `items`, which are messages, parts, tools, prompts, tensors and parameters."""

    values: int = 1_000_000
    items: int = 4096

    def read(self, body: bytes) -> Any:
        """The document of a body. Raises: GatewayError(BODY_TOO_LARGE) where it has more; ValueError where it
        is none (`read_json`)."""
        self.check_values(body)
        return read_json(body, self._check_document if len(body) > SHORT_BYTES else None)

    def check_values(self, body: bytes) -> None:
        """The same for its values and keys alone."""
        if len(body) > SHORT_BYTES:
            self._check_values(_Marks(body), 0)

    def check(self, body: bytes, num_numbers: int = 0) -> None:
        """The same for values and items; it had so many numbers of tensors, too, of which four count as one value, and
        an array counts as sixteen. The document is built only where it might have too many items."""
        if len(body) <= SHORT_BYTES and num_numbers <= SHORT_BYTES:
            return
        marks = _Marks(body)
        self._check_values(marks, num_numbers)
        if len(body) <= SHORT_BYTES or not marks.weigh_more(self.items, _ITEM_MARKS):
            return
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return  # its reader reports the error
        self._check_document(document)

    def _check_values(self, marks: _Marks, num_numbers: int) -> None:
        if marks.weigh_more(self.values - num_numbers // 4, _MARKS):
            what = f"the body's JSON may have more than the {self.values} values and keys that the gateway reads"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"{what} (--max-json-values)")

    def _check_document(self, document: Any) -> None:
        if _has_more_items(document, self.items):
            raise self._too_many_items()

    def check_count(self, count: int) -> None:
        """The same for items that are counted otherwise: names of shared memory regions, tensors."""
        if count > self.items:
            raise self._too_many_items()

    def _too_many_items(self) -> GatewayError:
        what = f"the request has more than {self.items} messages, parts, tools, prompts, tensors and parameters"
        return GatewayError(ErrorKind.BODY_TOO_LARGE, f"{what} (--max-request-items)")


BOUNDS = JsonBounds()


class _Marks:
    """The marks of a body, counted in texts too, or without these where that says more."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._outside: bytes | None = None  # what is in no text, once it is known

    def weigh_more(self, most: int, marks: Sequence[tuple[bytes, int]]) -> bool:
        """Whether they weigh more. A body that has many texts, or escapes, has more if its texts do."""
        if self._outside is None:
            if not _weigh_more(self._body, most, marks):
                return False
            self._outside = _outside_texts(self._body)
        return self._outside is None or _weigh_more(self._outside, most, marks)


def _weigh_more(body: bytes, most: int, marks: Sequence[tuple[bytes, int]]) -> bool:
    count = 0
    for at in range(0, len(body), _WINDOW_BYTES):
        end = at + _WINDOW_BYTES
        count += sum(body.count(mark, at, end) * weight for mark, weight in marks)
        if count > most:
            return True
    return count > most


def _outside_texts(body: bytes) -> bytes | None:
    """What is in no text of a body that has few of them; None of one that has many. Where it is malformed that holds up
    to there, and no reader reads on."""
    if b"\\" in body:
        if body.count(b"\\") > _MAX_QUOTES:
            return None
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = body.split(b'"', _MAX_QUOTES)
    return b"".join(pieces[::2]) if len(pieces) <= _MAX_QUOTES else None


def _has_more_items(document: Any, most: int) -> bool:
    left, count = [document], 0
    while left and count <= most:
        value = left.pop()
        if isinstance(value, dict):
            count += max(0, len(value) - _MAX_KEYS)
            left += [value[key] for key in value.keys() & _HOLDERS]
        elif isinstance(value, list) and not _COUNTED.isdisjoint(map(type, value)):
            count += len(value)
            if count <= most:
                left += value
    return count > most
