"""Writing header blocks (RFC 7541): fields by their index in the tables, literals, and a cache of whole blocks."""

from __future__ import annotations

from collections.abc import Iterable

from hpack.table import HeaderTable

from gateway.wire.http2.field_table import TABLE_BYTES
from gateway.wire.http2.fields import ENTRY_BYTES, Field
from gateway.wire.memo import Memo

_MAX_CACHED = 256  # blocks of one connection
# The table takes no more entries: each new one gives all others another index, and so all cached blocks other bytes.
_MAX_ENTRIES = 16

_STATIC: dict[Field, int] = {field: index for index, field in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}
_INDEXED = [bytes((0x80 | index,)) for index in range(len(HeaderTable.STATIC_TABLE) + 1)]
_STATIC_NAMES = {name: index for (name, _), index in reversed(list(_STATIC.items()))}


class FieldEncoder:
    """Encodes the blocks of one connection: fields that come again by the dynamic table, as long as it has room. Blocks
    are cached by identity: a sender of the same fields passes the same `CachedHeaders`."""

    __slots__ = ("_cache", "_entries", "_once", "_room", "_table_bytes", "_unsent_sizes")

    def __init__(self) -> None:
        self._cache: dict[CachedHeaders, bytes] = {}
        self._once: set[CachedHeaders] = set()  # sent once: they may never be sent again
        self._entries: dict[Field, int] = {}  # the dynamic table, which evicts none: their numbers from the oldest on
        self._room = TABLE_BYTES
        self._table_bytes = TABLE_BYTES
        self._unsent_sizes: list[int] = []

    def resize(self, table_bytes: int) -> None:
        """The peer's decoder allows a table of this size (SETTINGS_HEADER_TABLE_SIZE); ours is never larger."""
        table_bytes = min(table_bytes, TABLE_BYTES)
        if table_bytes != self._table_bytes:
            self._table_bytes = table_bytes
            self._room = 0  # it was smaller, if only for a while: literals alone will do
            self._entries.clear()
            self._cache.clear()
            # Of many changes the smallest and the last are sent (RFC 7541 section 4.2).
            self._unsent_sizes = sorted({min([table_bytes, *self._unsent_sizes]), table_bytes})

    def encode(self, steady: CachedHeaders, passing: bytes = b"") -> bytes:
        """A block: the cached fields, then those of this call, which `literals` wrote."""
        block = self._cache.get(steady)
        if block is None:
            block = self._encode(steady)
        return block + passing if passing else block

    def _encode(self, steady: CachedHeaders) -> bytes:
        if self._unsent_sizes:
            updates = bytearray()
            for size in self._unsent_sizes:
                _integer(updates, size, 5, 0x20)
            self._unsent_sizes = []
            return bytes(updates) + steady.literals
        if steady not in self._once:
            if len(self._once) >= _MAX_CACHED:
                self._once.clear()
            self._once.add(steady)
            return steady.literals
        if len(self._cache) >= _MAX_CACHED:
            return steady.literals
        new = {field for field in steady.fields if field not in self._entries and not _static_index(field)}
        size = sum(len(name) + len(value) + ENTRY_BYTES for name, value in new)
        # More of them would evict entries in use.
        if new and size <= self._room and len(self._entries) < _MAX_ENTRIES:
            self._room -= size
            self._cache.clear()  # they stand in front: all others have another index now
            return self._indexed(steady.fields, inserts=True)
        block = self._cache[steady] = self._indexed(steady.fields)
        return block

    def _indexed(self, fields: Iterable[Field], *, inserts: bool = False) -> bytes:
        """Fields by their index; those that have none get an entry, or are literals."""
        out, entries = bytearray(), self._entries
        for field in fields:
            index, number = _static_index(field), entries.get(field)
            if number is not None:
                index = len(HeaderTable.STATIC_TABLE) + len(entries) - number
            if index:
                _integer(out, index, 7, 0x80)
            elif inserts:
                entries[field] = len(entries)
                out += with_value(literal_name(field[0], indexing=True), field[1])
            else:
                out += literal(*field)
        return bytes(out)


class CachedHeaders:
    """Fields that are sent more than once, with their encoding."""

    __slots__ = ("fields", "literals")

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        self.literals = literals(self.fields)


def _static_index(field: Field) -> int:
    """0 where the field is not in the static table with a value."""
    return _STATIC.get(field, 0) if field[1] else 0


def literals(fields: Iterable[Field], *, secret: bool = False) -> bytes:
    """Fields that use no dynamic table; `secret` ones must not be indexed by relays (RFC 7541 section 7.1.3)."""
    pieces: list[bytes] = []
    for field in fields:
        index = _static_index(field)
        if index and not secret:
            pieces.append(_INDEXED[index])
        else:
            pieces.append(literal(*field, secret=secret))
    return b"".join(pieces)


def literal(name: bytes, value: bytes, *, secret: bool = False) -> bytes:
    """One field that uses no dynamic table."""
    return with_value((_secret_name if secret else _plain_name)(name), value)


def with_value(name: bytes, value: bytes) -> bytes:
    """A literal from its name, made by `literal_name`."""
    if len(value) < 0x7F:
        return b"%b%c%b" % (name, len(value), value)
    size = bytearray()
    _integer(size, len(value), 7, 0)
    return name + bytes(size) + value


def literal_name(name: bytes, *, secret: bool = False, indexing: bool = False) -> bytes:
    """All of a literal that stands before its value; with `indexing` it becomes an entry of the dynamic table."""
    out = bytearray()
    named = _STATIC_NAMES.get(name, 0)
    if indexing:
        _integer(out, named, 6, 0x40)
    else:
        _integer(out, named, 4, 0x10 if secret else 0)
    if not named:
        _integer(out, len(name), 7, 0)
        out += name
    return bytes(out)


_plain_name = Memo(literal_name)
_secret_name = Memo(lambda name: literal_name(name, secret=True))


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
