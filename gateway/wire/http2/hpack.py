"""Writing header blocks: the `hpack` library where the table changes, a cache of blocks elsewhere (RFC 7541)."""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Encoder
from hpack.table import HeaderTable

from gateway.wire.http2.field_table import TABLE_BYTES
from gateway.wire.http2.fields import ENTRY_BYTES, Field
from gateway.wire.memo import Memo

_MAX_CACHED = 256  # blocks of one connection

_STATIC: dict[Field, int] = {field: index for index, field in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}
_INDEXED = [bytes((0x80 | index,)) for index in range(len(HeaderTable.STATIC_TABLE) + 1)]
_STATIC_NAMES = {name: index for (name, _), index in reversed(list(_STATIC.items()))}


class FieldEncoder:
    """Encodes the blocks of one connection: fields that come again by the dynamic table, as long as it has room. Blocks
    are cached by identity: a sender of the same fields passes the same `CachedHeaders`."""

    __slots__ = ("_cache", "_encoder", "_must_send_size", "_once", "_room")

    def __init__(self) -> None:
        self._encoder = Encoder()
        self._cache: dict[CachedHeaders, bytes] = {}
        self._once: set[CachedHeaders] = set()  # sent once: they may never be sent again
        self._room = TABLE_BYTES
        self._must_send_size = False

    def resize(self, table_bytes: int) -> None:
        """The peer's decoder allows a table of this size (SETTINGS_HEADER_TABLE_SIZE); ours is never larger."""
        table_bytes = min(table_bytes, TABLE_BYTES)
        if table_bytes != self._encoder.header_table_size:
            self._encoder.header_table_size = table_bytes
            self._room = 0 if table_bytes < TABLE_BYTES else self._room  # a small table: literals alone will do
            self._cache.clear()
            # Of many changes the smallest and the last are sent (RFC 7541 section 4.2).
            changes = self._encoder.table_size_changes
            changes[:] = sorted({min(changes), table_bytes})
            self._must_send_size = True

    def encode(self, steady: CachedHeaders, passing: bytes = b"") -> bytes:
        """A block: the cached fields, then those of this call, which `literals` wrote."""
        block = self._cache.get(steady)
        if block is None:
            block = self._encode(steady)
        return block + passing if passing else block

    def _encode(self, steady: CachedHeaders) -> bytes:
        if self._must_send_size:
            self._must_send_size = False
            return self._encoder.encode([]) + steady.literals
        if steady not in self._once:
            if len(self._once) >= _MAX_CACHED:
                self._once.clear()
            self._once.add(steady)
            return steady.literals
        search = self._encoder.header_table.search
        size = sum(
            len(name) + len(value) + ENTRY_BYTES
            for name, value in steady.fields
            if (found := search(name, value)) is None or found[2] is None
        )
        if size > self._room or len(self._cache) >= _MAX_CACHED:
            return steady.literals  # it would evict entries in use
        block: bytes = self._encoder.encode([(*field, False) for field in steady.fields])
        if size:  # new entries stand in front: all others have another index now
            self._room -= size
            self._cache.clear()
        else:
            self._cache[steady] = block
        return block


class CachedHeaders:
    """Fields that are sent more than once, with their encoding."""

    __slots__ = ("fields", "literals")

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields = tuple(fields)
        self.literals = literals(self.fields)


def literals(fields: Iterable[Field], *, secret: bool = False) -> bytes:
    """Fields that use no dynamic table; `secret` ones must not be indexed by relays (RFC 7541 section 7.1.3)."""
    pieces: list[bytes] = []
    for field in fields:
        index = _STATIC.get(field)
        if index is not None and field[1] and not secret:
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


def literal_name(name: bytes, *, secret: bool = False) -> bytes:
    """All of a literal that stands before its value."""
    out = bytearray()
    named = _STATIC_NAMES.get(name, 0)
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
