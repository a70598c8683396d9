"""Reading header blocks: HPACK with its dynamic table, and a memory of blocks that repeat themselves (RFC 7541)."""

from __future__ import annotations

import re
from collections import deque

from hpack.exceptions import HPACKError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from gateway.wire.http2.block_shape import BlockShape
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
# Shapes remembered: of so many lengths, so many of each, since deadlines and the like stand in few ways in a client's
# blocks; and how many fields may differ.
_MAX_LENGTHS = 16
_MAX_SHAPES_OF_A_LENGTH = 4
_MAX_OWN_FIELDS = 16
_MISSES_A_CHANGE = 16

_STATIC: tuple[Field, ...] = ((b"", b""), *HeaderTable.STATIC_TABLE)
_FIRST_DYNAMIC = len(_STATIC)

# Indexed fields, each in one byte.
_INDEXED = re.compile(rb"[\x80-\xfe]+")

_decode_huffman = Memo(decode_huffman)


class FieldDecoder:
    """Decodes the blocks of one connection, in the order in which they come.

    A block that leaves the dynamic table as it was means the same until some other block changes it: until then it is
    looked up. `volatile` names fields that peers send with another value each time (ids, traces): a block is looked up
    without these, and by the shape that it shares with blocks before, where they have it as plain literals.
    """

    __slots__ = (
        "_entries",
        "_has_changed",
        "_max_list_bytes",
        "_max_table_bytes",
        "_num_missed",
        "_old",
        "_seen",
        "_shapes",
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
        self._shapes: dict[int, list[BlockShape]] = {}  # by length, the last ones first
        self._seen: set[tuple[int, Block]] = set()  # lengths and bases of blocks that came without a known shape
        self._num_missed = 0  # times that another shape of a length was wanted

    def __repr__(self) -> str:
        known = len(self._young) + len(self._old)
        return f"<FieldDecoder {len(self._entries)} entries, {self._table_bytes} bytes, {known} blocks known>"

    def decode(self, block: bytes) -> Block:
        """Decode a whole block.

        Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where the fields are too long: what follows could
        not be read any more.
        """
        found = self._young.get(block)
        if found is not None:
            return found
        for shape in self._shapes.get(len(block), ()):
            found = shape.read(block)
            if found is not None:
                return found
        return (self._volatile and self._decode_parted(block)) or self._recall_or_read(block)

    def _decode_parted(self, block: bytes) -> Block | None:
        """Decode a block in which volatile fields stand as literals; None where none do, or the table changes."""
        try:
            parted = self._part(block)
        except (IndexError, HPACKError):
            return None  # whoever reads all of it says what is wrong
        if parted is None:
            return None
        rest, own, spans, num_before = parted
        base = self._young.get(rest) or self._recall_or_read(rest)
        if num_before < len(base.fields) and base.fields[num_before][0].startswith(b":"):
            return None  # a pseudo-field stands after one of them
        found = Block.like(base, own)
        if found is None:
            return None
        if found.list_bytes > self._max_list_bytes:
            raise _too_long()
        is_short = len(own) <= _MAX_OWN_FIELDS and len(block) <= _MAX_REMEMBERED_BYTES
        # A base that is not remembered is not to be held by a shape either.
        if is_short and len(spans) == len(own) and self._young.get(rest) is base:
            self._learn_shape(block, found, base, spans)
        return found

    def _learn_shape(self, block: bytes, found: Block, base: Block, spans: list[tuple[int, int]]) -> None:
        """Remember a block's shape, if one like it came before: a client whose steady fields change with each call has
        none, and one that has more shapes than there is room for does not push one out with each call."""
        length = len(block)
        if (length, base) not in self._seen:
            if len(self._seen) >= _MAX_LENGTHS:
                self._seen.clear()
            self._seen.add((length, base))
            return
        known = self._shapes.get(length)
        if known is None:
            if len(self._shapes) >= _MAX_LENGTHS:
                self._shapes.clear()
            known = self._shapes[length] = []
        elif len(known) >= _MAX_SHAPES_OF_A_LENGTH:
            self._num_missed += 1
            if self._num_missed % _MISSES_A_CHANGE:
                return
            known.pop()
        found.shape = shape = BlockShape(block, found, spans)
        known.insert(0, shape)

    def _part(self, block: bytes) -> tuple[bytes, list[Field], list[tuple[int, int]], int] | None:
        """The block without its volatile fields; these; where the values stand of those that have it as it is; how many
        fields stand before the first of them."""
        kept: list[bytes] = []
        own: list[Field] = []
        spans: list[tuple[int, int]] = []
        num_kept = num_before = 0
        at, end = 0, len(block)
        while at < end:
            start = at
            first = block[at]
            if first >= 0x80:
                run = _INDEXED.match(block, at)
                if run is None:
                    return None
                num_kept += run.end() - at
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
                if not own:
                    num_before = num_kept
                is_plain = block[at] < 0x80
                value, at = _read_string(block, at)
                own.append((name, value))
                if is_plain:
                    spans.append((at - len(value), at))
            else:
                size = block[at] & 0x7F
                at += 1
                if size == 0x7F:
                    size, at = _read_integer(block, at, 0x7F)
                at += size
                num_kept += 1
                kept.append(block[start:at])
        return (b"".join(kept), own, spans, num_before) if own and at == end else None

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
                self._shapes.clear()
                self._seen.clear()
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
