"""Bounds on JSON that is read whole: what its document would take in memory and time is known before it is built.

A short body needs no check. For a longer one, the bytes that separate or open values are counted, at first in texts
too: never less than there are values.
"""

from __future__ import annotations

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
        document = read_json(body)
        if len(body) > SHORT_BYTES and _has_more_items(document, self.items):
            raise self._too_many_items()
        return document

    def check_values(self, body: bytes, num_numbers: int = 0) -> None:
        """The same for its values and keys alone; it had so many numbers of tensors, too, of which four count as one
        value, and an array counts as sixteen."""
        if len(body) <= SHORT_BYTES and num_numbers <= SHORT_BYTES:
            return
        most = self.values - num_numbers // 4
        if _counts_more(body, most) and _counts_more_outside_texts(body, most):
            what = f"the body's JSON may have more than the {self.values} values and keys that the gateway reads"
            raise GatewayError(ErrorKind.BODY_TOO_LARGE, f"{what} (--max-json-values)")

    def check_items(self, body: bytes) -> None:
        """The same for its items alone. The document, whose values are within bounds, is built for that only where it
        might have too many."""
        if len(body) <= SHORT_BYTES or not _counts_more(body, self.items, _ITEM_MARKS):
            return
        if not _counts_more_outside_texts(body, self.items, _ITEM_MARKS):
            return
        try:
            document = orjson.loads(body)
        except orjson.JSONDecodeError:
            return  # its reader reports the error
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


def _counts_more(body: bytes, most: int, marks: tuple[tuple[bytes, int], ...] = _MARKS) -> bool:
    """Whether the marks of a body weigh more."""
    count = 0
    for at in range(0, len(body), _WINDOW_BYTES):
        end = at + _WINDOW_BYTES
        count += sum(body.count(mark, at, end) * weight for mark, weight in marks)
        if count > most:
            return True
    return count > most


def _counts_more_outside_texts(body: bytes, most: int, marks: tuple[tuple[bytes, int], ...] = _MARKS) -> bool:
    """The same for what is in no text, where the body has few of them; one that has many has more. Where it is
    malformed that holds up to there, and no reader reads on."""
    if b"\\" in body:
        if body.count(b"\\") > _MAX_QUOTES:
            return True
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    pieces = body.split(b'"', _MAX_QUOTES)
    return len(pieces) > _MAX_QUOTES or _counts_more(b"".join(pieces[::2]), most, marks)


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
