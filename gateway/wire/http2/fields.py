"""Header fields of HTTP/2: what a decoded block holds, and what is malformed in it (RFC 9113 section 8)."""

from __future__ import annotations

import re
from typing import Any

Field = tuple[bytes, bytes]

# Names in lower case (section 8.2.1); values without NUL, CR and LF, and without blanks around them.
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(rb"(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?")
# What belongs to an HTTP/1.1 connection (section 8.2.2).
_OF_CONNECTIONS = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"})
_OF_REQUESTS = frozenset({b":method", b":scheme", b":path", b":authority"})


class Block:
    """The fields of one header block, in their order. `error` says what is malformed, None where nothing is; `length`
    is what a content-length tells.

    A connection whose peer repeats itself hands over the same object again and again: `note` is a place for what its
    reader made of it.
    """

    __slots__ = ("error", "fields", "length", "note")

    def __init__(self, fields: list[Field]) -> None:
        self.fields = fields
        self.length: int | None = None
        self.error = _first_fault(fields)
        told = {value for name, value in fields if name == b"content-length"} if self.error is None else ()
        if told:
            text = next(iter(told))
            if len(told) > 1 or not text.isdigit() or len(text) > 18:
                self.error = "content-length is not one number"
            else:
                self.length = int(text)
        self.note: Any = None

    def __repr__(self) -> str:
        return f"<Block {self.fields}>"

    def value(self, name: bytes) -> bytes | None:
        """The first value of a field."""
        for field, value in self.fields:
            if field == name:
                return value
        return None


def request_fault(block: Block) -> str | None:
    """What is malformed in a request's pseudo-fields (section 8.3.1)."""
    pseudo = [field for field in block.fields if field[0].startswith(b":")]
    names = [name for name, _ in pseudo]
    if not _OF_REQUESTS.issuperset(names) or len(set(names)) != len(names):
        return "its pseudo-fields are not those of a request, each once"
    found = dict(pseudo)
    if not found.get(b":method") or not found.get(b":scheme") or not found.get(b":path"):
        return "a request needs :method, :scheme and :path"
    if found[b":method"] == b"CONNECT":
        return "CONNECT is not served here"
    if not found[b":path"].startswith(b"/") and found[b":path"] != b"*":
        return "its :path does not start with '/'"
    authority, host = found.get(b":authority"), block.value(b"host")
    if authority is not None and host is not None and authority != host:
        return ":authority and host do not agree"
    return None


def reply_fault(block: Block) -> str | None:
    """What is malformed in a reply's pseudo-fields (section 8.3.2)."""
    pseudo = [field for field in block.fields if field[0].startswith(b":")]
    if len(pseudo) != 1 or pseudo[0][0] != b":status":
        return "a reply has the pseudo-field :status, and no other"
    status = pseudo[0][1]
    return None if len(status) == 3 and status.isdigit() else ":status is not a number of three digits"


def trailer_fault(block: Block) -> str | None:
    """Trailers have no pseudo-fields (section 8.1)."""
    return "its trailers have pseudo-fields" if block.fields and block.fields[0][0].startswith(b":") else None


def _first_fault(fields: list[Field]) -> str | None:
    """What is malformed wherever a block stands."""
    regular = False
    for name, value in fields:
        if name.startswith(b":"):
            if regular:
                return "a pseudo-field stands after other fields"
            bare = name[1:]
        else:
            regular = True
            bare = name
        if not _NAME.fullmatch(bare):
            return f"the field name {name!r} is not in lower case, or no name"
        if not _VALUE.fullmatch(value):
            return f"the value of {name.decode()} has a character that is not allowed"
        if name in _OF_CONNECTIONS or (name == b"te" and value != b"trailers"):
            return f"the field {name.decode()} belongs to an HTTP/1.1 connection"
    return None
