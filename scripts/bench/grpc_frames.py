"""Header blocks as gRPC's peers write and read them (RFC 7541).

This module defines what a case sends. It uses nothing of the gateway, so that changes of the gateway do not change the
load.
"""

from collections.abc import Mapping, Sequence

from hpack import Decoder

Field = tuple[bytes, bytes]

# The first index of the dynamic table, its youngest entry (section 2.3.3), as an indexed field (section 6.1).
_YOUNGEST = 0x80 | 62

# Number of blocks that ReplyFields caches: a peer with more never repeats itself.
_MAX_KNOWN = 1000


def literal(field: Field, *, is_inserted: bool) -> bytes:
    """A field as a literal, inserted into the peer's table or not (sections 6.2.1, 6.2.2); both parts below 127
    bytes."""
    name, value = field
    assert max(len(name), len(value)) < 127
    return b"%c%c%b%c%b" % (0x40 if is_inserted else 0, len(name), name, len(value), value)


def indexed(age: int) -> bytes:
    """The field that was inserted into the peer's table before the last `age` ones."""
    assert _YOUNGEST + age < 0xFF
    return bytes([_YOUNGEST + age])


class SteadyFields:
    """Fields that are the same in every block of a connection: inserted into the peer's table once, then one byte each.

    `num_inserted` is the number of other fields inserted since then; fields that would have been evicted by then are
    inserted again.
    """

    # Bytes of a table of 4,096 (the size that all peers begin with) that the others may take: theirs have up to 128.
    _ROOM = 24

    def __init__(self, fields: Sequence[Field]) -> None:
        self._first = b"".join(literal(field, is_inserted=True) for field in fields)
        self._num_fields = len(fields)
        self._later = [
            b"".join(indexed(len(fields) - 1 - index + others) for index in range(len(fields)))
            for others in range(self._ROOM)
        ]
        self.num_inserted = self._ROOM

    def block(self) -> bytes:
        if self.num_inserted >= self._ROOM:
            self.num_inserted = 0
            return self._first
        return self._later[self.num_inserted]


class ReplyFields:
    """Reads the header blocks of one connection, in their order. Blocks that leave the table unchanged are cached until
    another one changes it."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._known: dict[bytes, Mapping[bytes, bytes]] = {}

    def read(self, block: bytes) -> Mapping[bytes, bytes]:
        """The fields by name.

        Raises: hpack.HPACKError.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        table = self._decoder.header_table.dynamic_entries
        youngest = table[0] if table else None
        fields = {bytes(name): bytes(value) for name, value in self._decoder.decode(block, raw=True)}
        if (table[0] if table else None) is youngest and len(self._known) < _MAX_KNOWN:
            self._known[block] = fields
        else:
            self._known.clear()
        return fields
