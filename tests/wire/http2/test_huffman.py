"""Huffman code against the `hpack` library."""

from itertools import product

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as reference
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.http2 import huffman
from gateway.wire.http2.huffman import decode_huffman

encode = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode
TEXTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E, exclude_characters="\\")).map(str.encode)


@given(st.binary(max_size=80))
@example(b"")
@example(bytes(range(256)))
@example(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
def test_what_was_written_is_read(text: bytes) -> None:
    """Any encoded bytes decode to the original."""
    assert decode_huffman(encode(text)) == text


@given(TEXTS)
@example(bytes(range(0x20, 0x5C)) + bytes(range(0x5D, 0x7F)))
def test_visible_text_is_decoded_by_zlib(text: bytes) -> None:
    """Visible characters but the backslash need no help of the library's decoder, which is slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(huffman, "decode_any", None)
        assert decode_huffman(encode(text)) == text


def agrees(coded: bytes) -> None:
    """The decoder and the library return the same text, or both reject the code."""
    try:
        expected = reference(coded)
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError):
            decode_huffman(coded)
    else:
        assert decode_huffman(coded) == expected


@given(st.binary(max_size=12))
@example(b"\xff" * 4)  # the end-of-string code, which no string contains (RFC 7541 section 5.2)
@example(b"\x1f\xff")  # padding longer than seven bits
@example(b"\x30\x5d" * 4)  # what the decoder appends
def test_any_bytes(coded: bytes) -> None:
    """Whatever comes is decoded as by the library, or refused."""
    agrees(coded)


def test_any_two_bytes_behind_a_text() -> None:
    """All codes and paddings that two bytes can hold are read as by the library; so is what looks like its mark."""
    for first, second in product(range(0, 256, 3), range(256)):
        agrees(bytes((first, second)))


@given(TEXTS, st.integers(0, 63), st.binary(max_size=2))
def test_text_with_another_end(text: bytes, kept_bits: int, more: bytes) -> None:
    """Text that is cut in the middle of a code, or goes on, is read as by the library, or refused."""
    coded = encode(text)
    cut = max(0, len(coded) * 8 - kept_bits)
    number = int.from_bytes(coded, "big") >> (len(coded) * 8 - cut) << (-cut % 8)
    agrees(number.to_bytes(-(-cut // 8), "big") + more)


@given(st.lists(TEXTS.map(encode) | st.binary(max_size=6), max_size=6))
@example([b"\xff" * 4, encode(b"next"), b"\x1f\xff", encode(b"last")])
def test_strings_one_after_another(coded: list[bytes]) -> None:
    """What a string decodes to does not depend on those before it, refused ones among them."""
    for each in coded:
        agrees(each)


def test_nothing_of_a_string_is_left_behind_the_mark() -> None:
    """No end of the mark is its beginning: so no bits of a code stand behind it where a string ends as it must."""
    bits = format(int.from_bytes(huffman._MARK, "big"), "016b")
    assert not any(bits.endswith(bits[:size]) for size in range(1, len(bits)))
