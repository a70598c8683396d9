"""HPACK's table, its Huffman code, and the blocks that are read by them (RFC 7541)."""

from __future__ import annotations

import re

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE
from hpack.table import HeaderTable

from gateway.wire.http2.fields import ENTRY_BYTES, Field
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.memo import Memo


class _State(dict[int, "tuple[_State, bytes, bool]"]):
    """The decoder's state between two bytes: for each next byte the state that follows, the characters that the byte
    completes, and whether the string may end there. At most 256 states of 256 bytes each, some 10 MB."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __missing__(self, byte: int) -> tuple[_State, bytes, bool]:
        number, text, flags = self._number, b"", 0
        for bits in (byte >> 4, byte & 0x0F):
            number, flags, symbol = HUFFMAN_TABLE[number * 16 + bits]
            if flags & HUFFMAN_FAIL:
                raise HPACKDecodingError("a string is not in Huffman code")
            if flags & HUFFMAN_EMIT_SYMBOL:
                text += bytes((symbol,))
        found = self[byte] = (_state(number), text, bool(flags & HUFFMAN_COMPLETE))
        return found


_states: dict[int, _State] = {}


def _state(number: int) -> _State:
    found = _states.get(number)
    if found is None:
        found = _states[number] = _State(number)
    return found


_start = _state(0)


def decode_huffman(text: bytes) -> bytes:
    """Raises: HPACKDecodingError where it is not Huffman code, or its padding is not the beginning of its EOS."""
    state, may_end = _start, True
    pieces: list[bytes] = []
    for byte in text:
        state, piece, may_end = state[byte]
        pieces.append(piece)
    if not may_end:
        raise HPACKDecodingError("a string in Huffman code ends too early")
    return b"".join(pieces)


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

# Tokens come again and again, between ids and traces that do not.
_decode_huffman = Memo(decode_huffman, on_second_sight=True)


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

    def read(self, block: bytes, max_fields: int) -> list[Field]:
        """All fields of a block, of any size: a byte can stand for an entry of 4 KiB.

        Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where there are more than `max_fields`; IndexError
        where the block ends too early or names an entry that is not there; HPACKError.
        """
        self.has_changed = False
        fields: list[Field] = []
        places = self._places
        num_updates = 0
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            if first >= 0x80:  # indexed fields
                run = INDEXED.match(block, at)
                if run is not None:
                    if len(fields) + run.end() - at > max_fields:
                        raise too_long()
                    fields += map(places.__getitem__, run[0])
                    at = run.end()
                    continue
                index, at = read_integer(block, at + 1, 0x7F) if first == 0xFF else (0, at)
                field = self.field(index)
            elif 0x20 <= first < 0x40:
                at = self._resize(block, at)
                num_updates += 1
                if fields or num_updates > _MAX_SIZE_UPDATES:
                    raise malformed("a table size update that is not at the start of the block")
                continue
            else:  # a literal, with or without indexing
                mask = 0x3F if first >= 0x40 else 0x0F
                index = first & mask
                at += 1
                if index == mask:
                    index, at = read_integer(block, at, mask)
                if index:
                    name = self.field(index)[0]
                else:
                    name, at = read_string(block, at)
                value, at = read_string(block, at)
                field = (name, value)
                if first >= 0x40:
                    places.insert(_FIRST_DYNAMIC, field)
                    self._size += len(name) + len(value) + ENTRY_BYTES
                    self.has_changed = True
                    if self._size > self._max_size:
                        self._evict()
            fields.append(field)
            if len(fields) > max_fields:
                raise too_long()
        return fields

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
        while self._size > self._max_size:
            name, value = self._places.pop()
            self._size -= len(name) + len(value) + ENTRY_BYTES


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
    return _decode_huffman(text) if first >= 0x80 else text, stop


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
