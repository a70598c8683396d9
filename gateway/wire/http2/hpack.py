"""Header compression: the `hpack` library where its state changes, a memory of blocks where it does not (RFC 7541)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from hpack import Decoder, Encoder, HPACKError
from hpack.exceptions import OversizedHeaderListError
from hpack.table import HeaderTable

from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.frames import ErrorCode, Http2Error
from gateway.wire.memo import Memo

_MAX_REMEMBERED = 256  # blocks of one connection
TABLE_BYTES = 4096  # the dynamic table's initial size on both sides, which is never asked to be another

_STATIC_FIELDS: tuple[Field, ...] = tuple(HeaderTable.STATIC_TABLE)
_LAST_STATIC = 0x80 + len(_STATIC_FIELDS)  # as the first byte of an indexed field
_STATIC = {field: index for index, field in reversed(list(enumerate(_STATIC_FIELDS, 1)))}
_STATIC_NAMES = {name: index for (name, _), index in reversed(list(_STATIC.items()))}


class FieldDecoder:
    """Decodes the blocks of one connection, in the order in which they come.

    A block that leaves the dynamic table as it was means the same until some other block changes it: until then it is
    looked up.
    """

    __slots__ = ("_decoder", "_memo", "_tables")

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_header_list_size=max_list_bytes)
        self._decoder.max_allowed_table_size = TABLE_BYTES
        self._tables = self._decoder.header_table
        self._memo: Memo[Block] = Memo(self._decode_steady, 256)

    def decode(self, block: bytes) -> Block:
        """Decode a whole block.

        Raises: Http2Error(COMPRESSION_ERROR), or ENHANCE_YOUR_CALM where the fields are too long: what follows could
        not be read any more.
        """
        try:
            return self._memo(block)
        except _TableChangedError as changed:
            self._memo = Memo(self._decode_steady, 256)
            return changed.block

    def _decode_steady(self, block: bytes) -> Block:
        """A block that changes nothing is read here, at a fraction of the library's price; others are the library's."""
        fields = self._read_only(block)
        if fields is not None:
            return Block(fields)
        table = self._tables
        entries = table.dynamic_entries
        before = (len(entries), table.maxsize, entries[0] if entries else None)
        try:
            decoded = cast(Iterable[Field], self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise Http2Error(ErrorCode.ENHANCE_YOUR_CALM, "the header fields are too long") from error
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"malformed header block: {error}") from error
        found = Block([(bytes(name), bytes(value)) for name, value in decoded])
        first = entries[0] if entries else None
        if (len(entries), table.maxsize) != before[:2] or first is not before[2]:
            raise _TableChangedError(found)
        return found

    def _read_only(self, block: bytes) -> list[Field] | None:
        """The fields of a block of indexed fields and plain literals without indexing; None where it holds anything
        else, be it malformed."""
        dynamic = self._tables.dynamic_entries
        fields: list[Field] = []
        left = self._decoder.max_header_list_size
        at, end = 0, len(block)
        try:
            while at < end:
                first = block[at]
                at += 1
                if first > 0x80:
                    if first == 0xFF:
                        return None
                    field = _STATIC_FIELDS[first - 0x81] if first <= _LAST_STATIC else dynamic[first - _LAST_STATIC - 1]
                    left -= len(field[0]) + len(field[1]) + 32
                    fields.append(field)
                    continue
                index = first & 0x0F
                if first >= 0x20 or index == 0x0F:
                    return None
                if index:
                    name = _STATIC_FIELDS[index - 1][0]
                else:
                    length = block[at]
                    at += 1
                    if length >= 0x7F:
                        return None
                    name = block[at : at + length]
                    at += length
                length = block[at]
                at += 1
                if length >= 0x7F:
                    return None
                fields.append((name, block[at : at + length]))
                left -= len(name) + length + 32
                at += length
        except IndexError:
            return None
        return fields if at == end and left >= 0 else None


class _TableChangedError(Exception):
    """A block changed the dynamic table: it would not mean the same a second time."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block


class FieldEncoder:
    """Encodes the blocks of one connection: fields that come again by the dynamic table, as long as it has room.

    Blocks are remembered by identity: whoever sends the same fields again hands over the same `Steady`.
    """

    __slots__ = ("_encoder", "_must_tell_size", "_once", "_remembered", "_room")

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._remembered: dict[Steady, bytes] = {}
        self._once: set[Steady] = set()  # sent one time: they may never come again
        self._room = TABLE_BYTES
        self._must_tell_size = False

    def resize(self, table_bytes: int) -> None:
        """The peer's decoder allows a table of this size (SETTINGS_HEADER_TABLE_SIZE); ours is never larger."""
        table_bytes = min(table_bytes, TABLE_BYTES)
        if table_bytes != self._encoder.header_table_size:
            self._encoder.header_table_size = table_bytes
            self._room = 0 if table_bytes < TABLE_BYTES else self._room  # a small table: literals alone will do
            self._remembered.clear()
            self._must_tell_size = True

    def encode(self, steady: Steady, passing: bytes = b"") -> bytes:
        """A block: the steady fields, then what `literals` wrote for this time alone."""
        known = self._remembered.get(steady)
        if known is None:
            known = self._encode(steady)
        return known + passing if passing else known

    def _encode(self, steady: Steady) -> bytes:
        if self._must_tell_size:
            self._must_tell_size = False
            return self._encoder.encode([]) + steady.literals
        if steady not in self._once:
            if len(self._once) >= _MAX_REMEMBERED:
                self._once.clear()
            self._once.add(steady)
            return steady.literals
        search = self._encoder.header_table.search
        size = sum(
            len(name) + len(value) + 32
            for name, value in steady.fields
            if (found := search(name, value)) is None or found[2] is None
        )
        if size > self._room or len(self._remembered) >= _MAX_REMEMBERED:
            return steady.literals  # what does not fit any more would push out what others use
        block: bytes = self._encoder.encode([(*field, False) for field in steady.fields])
        if size:  # what is new stands in front of the table: everything else has another index now
            self._room -= size
            self._remembered.clear()
        else:
            self._remembered[steady] = block
        return block


class Steady:
    """Fields that are sent more than once, as they are."""

    __slots__ = ("fields", "literals")

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        self.literals = literals(self.fields)

    def __repr__(self) -> str:
        return f"<Steady {self.fields}>"


def literals(fields: Iterable[Field], *, secret: bool = False) -> bytes:
    """Fields without a trace in any table; `secret` ones must not be indexed by who relays them (RFC 7541 7.1.3)."""
    out = bytearray()
    for field in fields:
        index = _STATIC.get(field)
        if index is not None and field[1] and not secret:
            out.append(0x80 | index)
            continue
        name, value = field
        named = _STATIC_NAMES.get(name, 0)
        _integer(out, named, 4, 0x10 if secret else 0)
        if not named:
            _integer(out, len(name), 7, 0)
            out += name
        _integer(out, len(value), 7, 0)
        out += value
    return bytes(out)


def _integer(out: bytearray, number: int, prefix_bits: int, flags: int) -> None:
    """RFC 7541 section 5.1."""
    limit = (1 << prefix_bits) - 1
    if number < limit:
        out.append(flags | number)
        return
    out.append(flags | limit)
    number -= limit
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
