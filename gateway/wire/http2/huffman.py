"""HPACK's Huffman code (RFC 7541 section 5.2), decoded by zlib.

HPACK's code and those of DEFLATE (RFC 1951 section 3.2.2) are canonical: the lengths of all codes determine the codes.
So a string is the content of a DEFLATE block whose header has HPACK's lengths, once the bits of each byte are reversed.
DEFLATE's codes have at most 15 bits, those of visible characters but the backslash. Longer ones begin with 15 ones, and
so does HPACK's end of a string; they end the block, and such strings are left to the `hpack` library.

A string is padded with up to seven ones. zlib cannot tell where they begin, so two bytes are appended that decode to
three characters behind any such padding, others for each length of it; other characters show malformed padding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as decode_any

_LONGEST_CODE = 15
_END_OF_BLOCK = 256
# The code lengths of characters, 0 where a character has none, and of the end of the block: all ones.
_LENGTHS = [*[bits if bits <= _LONGEST_CODE else 0 for bits in REQUEST_CODES_LENGTH[:_END_OF_BLOCK]], _LONGEST_CODE]
# The order of a header's lengths of the codes in which it tells lengths (RFC 1951 section 3.2.7).
_ORDER = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15)


def _header() -> bytes:
    """The header of the block: each length is told by four bits, which are the length itself."""
    bits = "0100000000" * 3  # three empty blocks, since the header must end with a byte
    bits += "101"  # the last block, of dynamic codes
    bits += "00000000001111"  # lengths of 257 literals, of one distance, and all nineteen of _ORDER, each reversed
    bits += "".join(["000" if length > _LONGEST_CODE else "001" for length in _ORDER])
    bits += "".join([format(length, "04b") for length in [*_LENGTHS, 0]])
    return int(bits[::-1], 2).to_bytes(len(bits) // 8, "little")


_REVERSED = bytes([int(format(byte, "08b")[::-1], 2) for byte in range(256)])
# No end of it is its beginning, and it has no code within reach of its end: so it is found where it was appended alone.
_MARK = b"\x30\x5d"
_MARK_CHARACTERS = 3


def _characters(bits: str) -> Iterator[int]:
    """The characters whose codes these bits are."""
    characters = {(REQUEST_CODES_LENGTH[char], REQUEST_CODES[char]): char for char in range(_END_OF_BLOCK)}
    at = 0
    for stop in range(len(bits) + 1):
        char = characters.get((stop - at, int(bits[at:stop] or "0", 2)))
        if char is not None:
            yield char
            at = stop


# What the mark decodes to behind paddings of no bit, one bit, up to seven.
_ENDINGS = frozenset([bytes(_characters("1" * padding + format(0x305D, "016b"))) for padding in range(8)])

_block = zlib.decompressobj(-9)  # of the least memory
_block.decompress(_header())
_begin = _block.copy
# Blocks amid which the next string may follow: no end of the mark is its beginning, so a string that ends with it has
# left no bit of a code behind. To copy a block costs as much as to decode a short string.
_ready = [_begin()]


def decode_huffman(text: bytes) -> bytes:
    """Raises: HPACKDecodingError where it is not Huffman code, or its padding is not the beginning of its EOS."""
    block = _ready.pop() if _ready else _begin()
    found = block.decompress((text + _MARK).translate(_REVERSED))
    if found[-_MARK_CHARACTERS:] not in _ENDINGS or block.eof:
        return decode_any(text)  # the block may be amid a code: another one takes its place
    _ready.append(block)
    return found[:-_MARK_CHARACTERS]
