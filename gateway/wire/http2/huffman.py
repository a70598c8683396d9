"""Reading strings in HPACK's Huffman code, a byte at a time (RFC 7541 section 5.2, appendix B).

The table is that of the `hpack` library, which reads four bits at a time: what a byte does to each of its states is
worked out when it first comes. Ids and deadlines, which grpc-go writes so, are other strings in each call.
"""

from __future__ import annotations

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import HUFFMAN_COMPLETE, HUFFMAN_EMIT_SYMBOL, HUFFMAN_FAIL, HUFFMAN_TABLE


class _State(dict[int, "tuple[_State, bytes, bool]"]):
    """Where one is between two bytes: by the next one, where that leads, the characters that it completes, and whether
    the string may end there. At most 256 states of 256 bytes each, some 10 MB if somebody sends them all."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def __repr__(self) -> str:
        return f"<_State {self._number}>"

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
    return _states.setdefault(number, _State(number))


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
