"""Reading header blocks, with a cache of blocks that repeat in whole or in part (RFC 7541)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from struct import Struct

from hpack.exceptions import HPACKError

from gateway.wire.http2.field_table import INDEXED, FieldTable, malformed, read_integer, read_string, too_long
from gateway.wire.http2.fields import ENTRY_BYTES, Block, Field, are_values
from gateway.wire.memo import NameCache

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# What a block's fault or length depends on.
_JUDGED = frozenset(
    {
        b"connection",
        b"content-length",
        b"host",
        b"keep-alive",
        b"proxy-connection",
        b"te",
        b"transfer-encoding",
        b"upgrade",
    }
)


class OwnNames(NameCache[bool]):
    """Which fields peers send with another value each time (tokens, ids, traces), by their names."""

    __slots__ = ("_is_own",)

    def __init__(self, is_own: Callable[[bytes], bool]) -> None:
        super().__init__()
        self._is_own = is_own

    def read(self, name: bytes) -> bool:
        return _NAME.fullmatch(name) is not None and name not in _JUDGED and self._is_own(name)


class BlockShape:
    """Blocks of one length that differ only in the values of some literals."""

    __slots__ = ("_base", "_constants", "_list_bytes", "_names", "_unpack")

    def __init__(self, block: bytes, found: Block, spans: Sequence[tuple[int, int]]) -> None:
        """`found` is the decoded `block`; `spans` are the places of the values of its own fields, which are not in
        Huffman code."""
        assert found.base is not None
        at = 0
        sizes: list[int] = []
        for start, stop in spans:
            sizes += (start - at, stop - start)
            at = stop
        sizes.append(len(block) - at)
        self._unpack = Struct("".join([f"{size}s" for size in sizes])).unpack
        self._constants = self._unpack(block)[::2]
        self._base = found.base
        self._names = found.own_names
        self._list_bytes = found.list_bytes

    def read(self, block: bytes) -> Block | None:
        """Decode a block of the shape's length; None where it has another shape, or a value is malformed."""
        parts = self._unpack(block)
        if parts[::2] != self._constants:
            return None
        values = parts[1::2]
        if not are_values(values):
            return None
        return Block.with_own(self._base, self._names, values, self._list_bytes, self)


# Blocks cached in one generation, and how long they may be: the peer must not fill the memory.
_MAX_CACHED = 64
_MAX_CACHED_BYTES = 1024
_MAX_CACHED_FIELDS = 64
# Cached shapes: the number of lengths, and of shapes of each length; and how many fields may differ.
_MAX_LENGTHS = 16
_MAX_SHAPES_OF_A_LENGTH = 4
_MAX_OWN_FIELDS = 16
_MISSES_A_CHANGE = 16
# Cached fields that blocks which changed the table had in common, and their size.
_MAX_BASES = 16
_MAX_BASE_BYTES = 4096


class FieldDecoder:
    """Decodes the blocks of one connection, in the order in which they come.

    A block that leaves the dynamic table unchanged has one meaning until another block changes the table: until then it
    is looked up. A block is looked up without the fields of its own (`own_names`), and by its shape where these are
    plain literals.

    The bytes of a block that changes the table cannot be looked up, because each change moves the indices. Such a block
    is parsed, and its fields without its own ones are looked up.
    """

    __slots__ = (
        "_bases",
        "_is_changing",
        "_last_base",
        "_max_fields",
        "_max_list_bytes",
        "_num_missed",
        "_old",
        "_own_names",
        "_seen",
        "_shapes",
        "_table",
        "_young",
    )

    def __init__(self, max_list_bytes: int, own_names: OwnNames | None = None) -> None:
        self._max_list_bytes = max_list_bytes
        self._max_fields = max_list_bytes // ENTRY_BYTES
        self._own_names = own_names
        self._table = FieldTable()
        self._is_changing = False  # the last block has changed the table
        self._bases: dict[tuple[Field, ...], Block] = {}
        self._last_base: tuple[list[Field], Block | None] = ([], None)
        # Two generations: when the young one is full it becomes the old one, from which entries in use move back.
        self._young: dict[bytes, Block] = {}
        self._old: dict[bytes, Block] = {}
        self._shapes: dict[int, list[BlockShape]] = {}  # by length, the newest first
        self._seen: set[tuple[int, Block]] = set()  # lengths and bases of blocks without a cached shape
        self._num_missed = 0  # lookups of a length that matched none of its shapes

    def __repr__(self) -> str:
        known = len(self._young) + len(self._old)
        return f"<FieldDecoder {self._table!r}, {known} blocks known>"

    def decode(self, block: bytes) -> Block:
        """Decode a whole block. Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where the fields are too
        long: later blocks could not be decoded."""
        found = self._young.get(block)
        if found is not None:
            return found
        if self._is_changing:  # nothing is cached then
            steady, own, num_before = self._read(block, self._own_names)
            if self._table.has_changed:
                return self._compose(steady, own, num_before)
            self._is_changing = False  # it is read once more, and cached
        for shape in self._shapes.get(len(block), ()):
            found = shape.read(block)
            if found is not None:
                return found
        if self._own_names is not None and (found := self._decode_parted(block, self._own_names)) is not None:
            return found
        return self._look_up_or_read(block)

    def _decode_parted(self, block: bytes, own_names: OwnNames) -> Block | None:
        """Decode a block whose own fields are literals; None where it has none, or changes the table."""
        try:
            parted = self._part(block, own_names)
        except (IndexError, HPACKError):
            return None  # the full decoder raises the error
        if parted is None:
            return None
        rest, own, spans, num_before = parted
        base = self._young.get(rest) or self._look_up_or_read(rest)
        if num_before < len(base.fields) and base.fields[num_before][0].startswith(b":"):
            return None  # a pseudo-field follows one of them
        found = Block.like(base, own, self._max_list_bytes)
        if found is None:
            return None
        is_short = len(own) <= _MAX_OWN_FIELDS and len(block) <= _MAX_CACHED_BYTES
        # A shape must not hold a base that is not cached.
        if is_short and len(spans) == len(own) and self._young.get(rest) is base:
            self._add_shape(block, found, base, spans)
        return found

    def _add_shape(self, block: bytes, found: Block, base: Block, spans: list[tuple[int, int]]) -> None:
        """Cache a block's shape at its second occurrence: a client whose other fields change with each call has none,
        and one with more shapes than fit replaces one only now and then."""
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

    def _part(self, block: bytes, own_names: OwnNames) -> tuple[bytes, list[Field], list[tuple[int, int]], int] | None:
        """The block without its own fields; those fields; the places of their values that are not coded; and the
        number of fields before the first of them."""
        runs: list[bytes] = []
        own: list[Field] = []
        spans: list[tuple[int, int]] = []
        num_kept = num_before = 0
        at, end = 0, len(block)
        while at < end:
            start = at
            first = block[at]
            if first >= 0x80:
                run = INDEXED.match(block, at)
                if run is None:
                    return None
                num_kept += run.end() - at
                at = run.end()
                runs.append(run[0])
                continue
            if first >= 0x20:
                return None
            at += 1
            index = first & 0x0F
            if index == 0x0F:
                index, at = read_integer(block, at, 0x0F)
            if index:
                name = self._table.field(index)[0]
            else:
                name, at = read_string(block, at)
            if own_names[name]:
                if not own:
                    num_before = num_kept
                is_plain = block[at] < 0x80
                value, at = read_string(block, at)
                own.append((name, value))
                if is_plain:
                    spans.append((at - len(value), at))
            else:
                size = block[at] & 0x7F
                at += 1
                if size == 0x7F:
                    size, at = read_integer(block, at, 0x7F)
                at += size
                num_kept += 1
                runs.append(block[start:at])
        return (b"".join(runs), own, spans, num_before) if own and at == end else None

    def _look_up_or_read(self, block: bytes) -> Block:
        found = self._old.get(block)
        if found is None:
            fields = self._read(block)[0]
            if self._table.has_changed:
                self._is_changing = True
                self._young, self._old = {}, {}
                self._shapes.clear()
                self._seen.clear()
                return self._compose(*self._parted(fields))
            found = self._whole(fields)
            if len(block) > _MAX_CACHED_BYTES or len(fields) > _MAX_CACHED_FIELDS:
                return found
        if len(self._young) >= _MAX_CACHED:
            self._old, self._young = self._young, {}
        self._young[block] = found
        return found

    def _read(self, block: bytes, own_names: OwnNames | None = None) -> tuple[list[Field], list[Field], int]:
        try:
            if own_names is None:
                return self._table.read(block, self._max_fields)
            return self._table.read(block, self._max_fields, own_names)
        except (IndexError, HPACKError) as error:
            raise malformed(str(error)) from error

    def _parted(self, fields: list[Field]) -> tuple[list[Field], list[Field], int]:
        """The same fields as `FieldTable.read` returns them."""
        own_names = self._own_names
        own = [field for field in fields if own_names[field[0]]] if own_names is not None else []
        if not own or own_names is None:
            return fields, own, 0
        return [field for field in fields if not own_names[field[0]]], own, fields.index(own[0])

    def _compose(self, steady: list[Field], own: list[Field], num_before: int) -> Block:
        """A block of these fields, as `FieldTable.read` returns them, based on those that it shares with earlier
        blocks."""
        last, base = self._last_base
        if base is None or steady != last:  # quick: entries of the table are the same objects each time
            base = self._base(steady)
        if not own:
            return base
        if num_before < len(steady) and steady[num_before][0].startswith(b":"):
            return self._whole(steady[:num_before] + own + steady[num_before:])  # which is as malformed
        return Block.like(base, own, self._max_list_bytes) or self._whole(steady + own)

    def _base(self, steady: list[Field]) -> Block:
        key = tuple(steady)
        base = self._bases.get(key)
        if base is None:
            base = self._whole(steady)
            if len(steady) > _MAX_CACHED_FIELDS or base.list_bytes > _MAX_BASE_BYTES:
                return base
            if len(self._bases) >= _MAX_BASES:
                self._bases.clear()
            self._bases[key] = base
        self._last_base = (steady, base)
        return base

    def _whole(self, fields: list[Field]) -> Block:
        left = self._max_list_bytes
        for name, value in fields:  # checked before anything is built
            left -= len(name) + len(value) + ENTRY_BYTES
        if left < 0:
            raise too_long()
        return Block(fields)
