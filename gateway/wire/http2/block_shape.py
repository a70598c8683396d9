"""Header blocks that differ in a few values alone, as those of one client's calls do (ids, traces)."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any

from gateway.wire.http2.fields import Block, is_value

# Of these alone every value is well-formed.
_VISIBLE = bytes([*range(0x21, 0x7F), *range(0x80, 0x100)])


class BlockShape:
    """Blocks of one length whose bytes are the same but for the values of some literals, which may be any."""

    __slots__ = ("_base", "_constants", "_list_bytes", "_names", "_unpack", "note")

    def __init__(self, block: bytes, found: Block, spans: Sequence[tuple[int, int]]) -> None:
        """`found` is what the bytes of `block` hold; `spans` are where the values of its own fields stand in them, as
        they are and not coded by Huffman."""
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
        self._names = [name for name, _ in found.own]
        self._list_bytes = found.list_bytes
        self.note: Any = None

    def __repr__(self) -> str:
        return f"<BlockShape {b', '.join(self._names).decode('latin-1')} beside {self._base!r}>"

    def read(self, block: bytes) -> Block | None:
        """A block of the shape's length; None where it has another shape, or a value is malformed."""
        parts = self._unpack(block)
        if parts[::2] != self._constants:
            return None
        values = parts[1::2]
        if b"".join(values).translate(None, _VISIBLE):
            for value in values:
                if not is_value(value):
                    return None
        own = list(zip(self._names, values))  # noqa: B905 - `strict` would cost as much again
        return Block.with_own(self._base, own, self._list_bytes, self)
