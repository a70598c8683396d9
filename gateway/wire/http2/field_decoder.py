"""Reading header blocks: HPACK with its dynamic table, and a memory of blocks that repeat themselves (RFC 7541)."""

from __future__ import annotations

import re
from collections import deque

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from gateway.wire.http2.fields import ENTRY_BYTES, Block, Field
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.memo import Memo

# The dynamic table's initial size on both sides, which is never asked to be another.
TABLE_BYTES = 4096
# Two are all that a change of settings takes (section 4.2); some encoders tell every step.
_MAX_SIZE_UPDATES = 8
# Blocks remembered in one generation, and how long they may be: a peer must not fill the memory by them.
_MAX_REMEMBERED = 64
_MAX_REMEMBERED_BYTES = 1024
_MAX_REMEMBERED_FIELDS = 64

_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC = len(_STATIC)

# Indexed fields, each in one byte.
_INDEXED = re.compile(rb"[\x80-\xfe]+")

_decode_huffman = Memo(decode_huffman)


class FieldDecoder:
    """Decodes the blocks of one connection, in the order in which they come.

    A block that leaves the dynamic table as it was means the same until some other block changes it: until then it is
    looked up. `volatile` names fields that peers send with another value each time (ids, traces): a block is looked up
    without these.
    """

    __slots__ = (
        "_entries",
        "_has_changed",
        "_max_list_bytes",
        "_max_table_bytes",
        "_old",
        "_table_bytes",
        "_volatile",
        "_young",
    )

    def __init__(self, max_list_bytes: int, volatile: frozenset[bytes] = frozenset()) -> None:
        self._max_list_bytes = max_list_bytes
        self._volatile = volatile
        self._entries: deque[Field] = deque()  # the newest first
        self._table_bytes = 0
        self._max_table_bytes = TABLE_BYTES  # the encoder may ask for less
        self._has_changed = False  # the table, by the block that is being read
        # Two generations: when the young one is full it becomes the old one, and what is used comes back from there.
        self._young: dict[bytes, Block] = {}
        self._old: dict[bytes, Block] = {}

    def __repr__(self) -> str:
        known = len(self._young) + len(self._old)
        return f"<FieldDecoder {len(self._entries)} entries, {self._table_bytes} bytes, {known} blocks known>"

    def decode(self, block: bytes) -> Block:
        """Decode a whole block.

        Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where the fields are too long: what follows could
        not be read any more.
        """
        return self._young.get(block) or (self._volatile and self._decode_parted(block)) or self._recall_or_read(block)

    def _decode_parted(self, block: bytes) -> Block | None:
        """Decode a block in which volatile fields stand as literals; None where none do, or the table changes."""
        try:
            parted = self._part(block)
        except (IndexError, HPACKError):
            return None  # whoever reads all of it says what is wrong
        if parted is None:
            return None
        rest, own = parted
        base = self._young.get(rest) or self._recall_or_read(rest)
        found = Block.like(base, own)
        if found is not None and found.list_bytes > self._max_list_bytes:
            raise _too_long()
        return found

    def _part(self, block: bytes) -> tuple[bytes, list[Field]] | None:
        """The block without its volatile fields, and these."""
        kept: list[bytes] = []
        own: list[Field] = []
        at, end = 0, len(block)
        while at < end:
            start = at
            first = block[at]
            if first >= 0x80:
                run = _INDEXED.match(block, at)
                if run is None:
                    return None
                at = run.end()
                kept.append(run[0])
                continue
            if first >= 0x20:
                return None
            at += 1
            index = first & 0x0F
            if index == 0x0F:
                index, at = _read_integer(block, at, 0x0F)
            if index:
                name = self._field(index)[0]
            else:
                name, at = _read_string(block, at)
            if name in self._volatile:
                value, at = _read_string(block, at)
                own.append((name, value))
            else:
                size = block[at] & 0x7F
                at += 1
                if size == 0x7F:
                    size, at = _read_integer(block, at, 0x7F)
                at += size
                kept.append(block[start:at])
        return (b"".join(kept), own) if own and at == end else None

    def _recall_or_read(self, block: bytes) -> Block:
        found = self._old.get(block)
        if found is None:
            try:
                found = Block(self._read(block))
            except (IndexError, HPACKError) as error:
                raise _malformed(str(error)) from error
            if self._has_changed:
                self._has_changed = False
                self._young, self._old = {}, {}
                return found
            if len(block) > _MAX_REMEMBERED_BYTES or len(found.fields) > _MAX_REMEMBERED_FIELDS:
                return found
        if len(self._young) >= _MAX_REMEMBERED:
            self._old, self._young = self._young, {}
        self._young[block] = found
        return found

    def _read(self, block: bytes) -> list[Field]:
        """Raises: Http2Error; IndexError where the block ends too early or names an entry that is not there."""
        fields: list[Field] = []
        left = self._max_list_bytes
        num_updates = 0
        entries = self._entries
        at, end = 0, len(block)
        while at < end:
            first = block[at]
            at += 1
            if first >= 0x80:  # an indexed field
                index = first & 0x7F
                if _FIRST_DYNAMIC <= index < 0x7F:
                    field = entries[index - _FIRST_DYNAMIC]
                else:
                    if index == 0x7F:
                        index, at = _read_integer(block, at, 0x7F)
                    field = self._field(index)
            elif first >= 0x40 or first < 0x20:  # a literal, with or without indexing
                mask = 0x3F if first >= 0x40 else 0x0F
                index = first & mask
                if index == mask:
                    index, at = _read_integer(block, at, mask)
                if index:
                    name = self._field(index)[0]
                else:
                    name, at = _read_string(block, at)
                value, at = _read_string(block, at)
                field = (name, value)
                if first >= 0x40:
                    self._add(field)
            else:
                at = self._resize(block, at - 1)
                num_updates += 1
                if fields or num_updates > _MAX_SIZE_UPDATES:
                    raise _malformed("a table size update that is not at the start of the block")
                continue
            left -= len(field[0]) + len(field[1]) + ENTRY_BYTES
            if left < 0:
                raise _too_long()
            fields.append(field)
        return fields

    def _field(self, index: int) -> Field:
        if index >= _FIRST_DYNAMIC:
            return self._entries[index - _FIRST_DYNAMIC]
        if not index:
            raise _malformed("index 0")
        return _STATIC[index]

    def _add(self, field: Field) -> None:
        self._entries.appendleft(field)
        self._table_bytes += len(field[0]) + len(field[1]) + ENTRY_BYTES
        self._has_changed = True
        self._evict()

    def _resize(self, block: bytes, at: int) -> int:
        """Read a size update; returns where it ends."""
        size = block[at] & 0x1F
        at += 1
        if size == 0x1F:
            size, at = _read_integer(block, at, 0x1F)
        if size > TABLE_BYTES:
            raise _malformed(f"a table of {size} bytes")
        if size != self._max_table_bytes:
            self._max_table_bytes = size
            self._has_changed = True
            self._evict()
        return at

    def _evict(self) -> None:
        while self._table_bytes > self._max_table_bytes:
            name, value = self._entries.pop()
            self._table_bytes -= len(name) + len(value) + ENTRY_BYTES


def _read_string(block: bytes, at: int) -> tuple[bytes, int]:
    """Section 5.2. Returns the string and where it ends."""
    first = block[at]
    at += 1
    size = first & 0x7F
    if size == 0x7F:
        size, at = _read_integer(block, at, 0x7F)
    stop = at + size
    text = block[at:stop]
    if len(text) != size:
        raise IndexError("a string ends too early")
    return _decode_huffman(text) if first >= 0x80 else text, stop


def _read_integer(block: bytes, at: int, number: int) -> tuple[int, int]:
    """The rest of an integer whose prefix is full (section 5.1). Returns it and where it ends."""
    for shift in range(0, 35, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    raise _malformed("an integer of more than five bytes")


def _too_long() -> Http2Error:
    return Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long")


def _malformed(what: str) -> Http2Error:
    return Http2Error(ErrorCode.COMPRESSION_ERROR, f"malformed header block: {what}")
