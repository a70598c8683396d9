"""HPACK's table, and the blocks that are read by it (RFC 7541)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hpack.table import HeaderTable

from gateway.wire.http2.fields import ENTRY_BYTES, Field
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.http2.huffman import decode_huffman

# The dynamic table's initial size on both sides, which this side never changes.
TABLE_BYTES = 4096
# A change of settings needs two (section 4.2); some encoders send every step.
_MAX_SIZE_UPDATES = 8

# Index 0 is no entry, and each byte of an indexed field has its highest bit set: so such bytes are places in this.
_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_BEFORE = 0x80
_FIRST_DYNAMIC = _BEFORE + len(_STATIC)

# Indexed fields, each in one byte.
INDEXED = re.compile(rb"[\x81-\xfe]+")


class _NoNames(dict[bytes, bool]):
    """Holds no name."""

    __slots__ = ()

    def __missing__(self, name: bytes) -> bool:
        return False


_NO_NAMES = _NoNames()


class FieldTable:
    """The table of one connection, as its peer's encoder has made it by the blocks that were read, in their order.
    `has_changed`: the last block has changed it."""

    __slots__ = ("_max_size", "_places", "_size", "has_changed")

    def __init__(self) -> None:
        # The static table, then the dynamic one, its newest entry first (section 2.3.3).
        self._places: list[Field] = [_STATIC[0]] * _BEFORE + list(_STATIC)
        self._size = 0
        self._max_size = TABLE_BYTES  # the encoder may ask for less
        self.has_changed = False

    def __repr__(self) -> str:
        return f"{len(self._places) - _FIRST_DYNAMIC} entries, {self._size} bytes"

    def read(
        self, block: bytes, max_fields: int, own_names: Mapping[bytes, bool] = _NO_NAMES
    ) -> tuple[list[Field], list[Field], int]:
        """All fields of a block, of any size: a byte can stand for an entry of 4 KiB. Returns those whose name is not
        in `own_names`, the others, and how many of the former stand before the first of the latter.

        Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where there are more than `max_fields`; IndexError
        where the block ends too early or names an entry that is not there; HPACKError.
        """
        self.has_changed = False
        steady: list[Field] = []
        own: list[Field] = []
        num_before = 0
        places = self._places
        num_updates = 0
        left = max_fields
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            if first >= 0x80:  # indexed fields
                run = INDEXED.match(block, at)
                if run is not None:
                    left -= run.end() - at
                    if left < 0:
                        raise too_long()
                    at = run.end()
                    for place in run[0]:
                        field = places[place]
                        if not own_names[field[0]]:
                            steady.append(field)
                        else:
                            if not own:
                                num_before = len(steady)
                            own.append(field)
                    continue
                index, at = read_integer(block, at + 1, 0x7F) if first == 0xFF else (0, at)
                field = self.field(index)
                name = field[0]
            elif first >= 0x40 or first < 0x20:  # a literal; its strings and numbers are read as by the functions below
                mask = 0x3F if first >= 0x40 else 0x0F
                index = first & mask
                at += 1
                if index == mask:
                    more = block[at]
                    if more < 0x80:
                        index += more
                        at += 1
                    else:
                        index, at = read_integer(block, at, mask)
                if index:
                    name = places[_BEFORE + index][0]
                else:
                    name, at = read_string(block, at)
                size = block[at]
                is_coded = size >= 0x80
                size &= 0x7F
                at += 1
                if size == 0x7F:
                    size, at = read_integer(block, at, 0x7F)
                stop = at + size
                if stop > end:
                    raise IndexError("a string ends too early")
                value = decode_huffman(block[at:stop]) if is_coded else block[at:stop]
                at = stop
                field = (name, value)
                if first >= 0x40:
                    places.insert(_FIRST_DYNAMIC, field)
                    self.has_changed = True
                    size = self._size = self._size + len(name) + len(value) + ENTRY_BYTES
                    if size > self._max_size:
                        self._evict()
            else:
                at = self._resize(block, at)
                num_updates += 1
                if steady or own or num_updates > _MAX_SIZE_UPDATES:
                    raise malformed("a table size update that is not at the start of the block")
                continue
            if not own_names[name]:
                steady.append(field)
            else:
                if not own:
                    num_before = len(steady)
                own.append(field)
            left -= 1
            if left < 0:
                raise too_long()
        return steady, own, num_before

    def field(self, index: int) -> Field:
        """Raises: Http2Error, IndexError."""
        if not index:
            raise malformed("index 0")
        return self._places[_BEFORE + index]

    def _resize(self, block: bytes, at: int) -> int:
        """Read a size update; returns where it ends."""
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            size, at = read_integer(block, at, 0x1F)
        if size > TABLE_BYTES:
            raise malformed(f"a table of {size} bytes")
        if size != self._max_size:
            self._max_size = size
            self.has_changed = True
            self._evict()
        return at

    def _evict(self) -> None:
        size, max_size, places = self._size, self._max_size, self._places
        while size > max_size:
            name, value = places.pop()
            size -= len(name) + len(value) + ENTRY_BYTES
        self._size = size


def read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """Section 5.2. Returns the string and where it ends."""
    first = block[at]
    at += 1
    size = first & 0x7F
    if size == 0x7F:
        size, at = read_integer(block, at, 0x7F)
    stop = at + size
    text = block[at:stop]
    if len(text) != size:
        raise IndexError("a string ends too early")
    return decode_huffman(text) if first >= 0x80 else text, stop


def read_integer(block: bytes, at: int, number: int) -> tuple[int, int]:
    """The rest of an integer whose prefix is full (section 5.1). Returns it and where it ends."""
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise malformed("an integer of more than five bytes")


def too_long() -> Http2Error:
    return Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")


def malformed(what: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, f"malformed header block: {what}")
