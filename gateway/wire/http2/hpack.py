"""Writing header blocks: the `hpack` library where its table changes, a memory of blocks where not (RFC 7541)."""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Encoder
from hpack.table import HeaderTable

from gateway.wire.http2.field_table import TABLE_BYTES
from gateway.wire.http2.fields import ENTRY_BYTES, Field
from gateway.wire.memo import Memo

_MAX_REMEMBERED = 256  # blocks of one connection

_STATIC: dict[Field, int] = {field: index for index, field in reversed(list(enumerate(HeaderTable.STATIC_TABLE, 1)))}
_INDEXED = [bytes((0x80 | index,)) for index in range(len(HeaderTable.STATIC_TABLE) + 1)]
_STATIC_NAMES = {name: index for (name, _), index in reversed(list(_STATIC.items()))}


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
            # Of many changes the smallest is told, and the last (RFC 7541 section 4.2).
            changes = self._encoder.table_size_changes
            changes[:] = sorted({min(changes), table_bytes})
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
            len(name) + len(value) + ENTRY_BYTES
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
    pieces: list[bytes] = []
    for field in fields:
        index = _STATIC.get(field)
        if index is not None and field[1] and not secret:
            pieces.append(_INDEXED[index])
        else:
            pieces.append(literal(*field, secret=secret))
    return b"".join(pieces)


def literal(name: bytes, value: bytes, *, secret: bool = False) -> bytes:
    """One field without a trace in any table."""
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
