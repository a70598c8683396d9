"""The names of messages that repeat themselves: a client sends the same tensors again and again, with other contents.

Where the fields of such a message stand is remembered as a pattern, which says of the next message of that size in one
match whether it has the same fields in the same places. A message that does not is read field by field.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.protocol.infer_message_head import MODEL_TAG, Names, read_names
from gateway.protocol.protobuf_wire import BYTES, fields, read_tag, read_varint, write_varint

# How often a size must come before it is worth a pattern, and how many are remembered.
_WORTH = 16
_MAX_KNOWN = 256
_MAX_SEEN = 4096
_MAX_FIELDS = 64
_CAPTURED = (MODEL_TAG, 0x12, 0x1A)  # model_name, model_version, id


class _Layout(NamedTuple):
    pattern: re.Pattern[bytes]
    groups: tuple[int, int, int]  # of the model, the version and the id
    spans: tuple[tuple[int, int], ...]


_new = tuple.__new__  # a named tuple's own takes four times as long


class Layouts:
    """Remembers layouts by the messages' sizes."""

    __slots__ = ("_known", "_seen")

    def __init__(self) -> None:
        self._known: dict[int, _Layout] = {}
        self._seen: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Layouts of {len(self._known)} sizes>"

    def read_names(self, data: bytes, at: int, end: int) -> Names:
        """As `message_head.read_names`, with the same result. Raises: GatewayError(BAD_REQUEST) where it is no protobuf
        message."""
        known = self._known.get(end - at)
        if known is not None:
            found = known.pattern.fullmatch(data, at, end)
            if found is not None:
                return _new(Names, (*found.group(*known.groups), known.spans))
            return read_names(data, at, end)
        names = read_names(data, at, end)
        self._count(names, data, at, end)
        return names

    def _count(self, names: Names, data: bytes, at: int, end: int) -> None:
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        size = end - at
        times = self._seen[size] = self._seen.get(size, 0) + 1
        if times < _WORTH:
            return
        del self._seen[size]
        pattern = _pattern_of(data, at, end)
        if pattern is not None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            groups = pattern.groupindex
            self._known[size] = _Layout(pattern, (groups["model"], groups["version"], groups["id"]), names.spans)


# Of all messages of a process.
LAYOUTS = Layouts()


def _pattern_of(data: bytes, at: int, end: int) -> re.Pattern[bytes] | None:
    """What matches messages with fields of the same tags and sizes; None where they are not plain or too many."""
    pieces: list[bytes] = []
    missing = dict(zip(_CAPTURED, (b"model", b"version", b"id"), strict=True))
    while at < end:
        start = at
        tag, at = read_tag(data, at)
        if tag & 7 != BYTES or len(pieces) >= _MAX_FIELDS:
            return None
        size, at = read_varint(data, at)
        content = b".{%d}" % size
        if tag in _CAPTURED:
            name = missing.pop(tag, None)
            if name is None:  # a name that comes twice
                return None
            content = b"(?P<%b>%b)" % (name, content)
        pieces.append(re.escape(data[start:at]) + content)
        at += size
    pieces += [b"(?P<%b>)" % name for name in missing.values()]
    return re.compile(b"".join(pieces), re.DOTALL)


ERROR_TAG = 0x0A  # what a response begins with that tells of an error
_ERROR_TAG = bytes([ERROR_TAG])
_RESPONSE_TAG = b"\x12"
_ID_TAG = b"\x1a"  # of ModelInferResponse


def error_response(text: str, request_id: bytes) -> bytes:
    """A response that tells of an error; its `infer_response` says which request failed, as Triton's does."""
    error = _field(_ERROR_TAG, text.encode("utf-8"))
    return error + (_field(_RESPONSE_TAG, _field(_ID_TAG, request_id)) if request_id else b"")


def is_error(message: bytes) -> bool:
    """Whether a response tells of an error."""
    return message[:1] == _ERROR_TAG


def error_of(response: bytes) -> bytes:
    """The text of a response that tells of an error; empty where it is malformed."""
    try:
        size, start = read_varint(response, 1)
    except IndexError:
        return b""
    return response[start : start + size]


def response_names(message: bytes) -> Names:
    """Whom a response answers; an error tells the request's id at most. Raises: GatewayError(BAD_REQUEST) where it is
    no protobuf message."""
    found = Names(b"", b"", b"", ())
    for number, _, value in fields(message):
        if number == 2 and isinstance(value, bytes):
            found = read_names(value, 0, len(value))
    return found


def _field(tag: bytes, content: bytes) -> bytes:
    return tag + write_varint(len(content)) + content
