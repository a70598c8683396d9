"""Huffman code against the `hpack` library."""

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman as reference
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.wire.http2.field_table import decode_huffman

encode = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode


@given(st.binary(max_size=80))
@example(b"")
@example(bytes(range(256)))
@example(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
def test_what_was_written_is_read(text: bytes) -> None:
    """Any encoded bytes decode to the original."""
    assert decode_huffman(encode(text)) == text


@given(st.binary(max_size=6))
@example(b"\xff" * 4)  # the end-of-string code, which no string contains (RFC 7541 section 5.2)
@example(b"\x1f\xff")  # padding longer than seven bits
def test_any_bytes(coded: bytes) -> None:
    """The decoder and the library return the same text, or both reject the code."""
    try:
        expected = reference(coded)
    except HPACKDecodingError:
        with pytest.raises(HPACKDecodingError, match="Huffman code"):
            decode_huffman(coded)
    else:
        assert decode_huffman(coded) == expected
