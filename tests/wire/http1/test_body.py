"""The chunked transfer coding."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wire.http1.body import LAST_CHUNK, ChunkedDecoder, encode_chunk


def decode(pieces: list[bytes]) -> tuple[bytes, bool, bytes]:
    """The data, whether the body has ended, and what came after it."""
    decoder = ChunkedDecoder()
    data = after = b""
    for piece in pieces:
        if decoder.has_ended:
            after += piece
        else:
            data += decoder.feed(piece)
    return data, decoder.has_ended, decoder.tail + after


def cut(whole: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(whole) + 1) for place in places), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges)]


CASES = [
    (b"0\r\n\r\n", b"", b""),
    (b"3\r\nabc\r\n0\r\n\r\n", b"abc", b""),
    (b"3\r\nabc\r\n0\r\n\r\nGET /", b"abc", b"GET /"),
    (b"A\r\n0123456789\r\n0\r\n\r\n", b"0123456789", b""),
    (b"0003\r\nabc\r\n000\r\n\r\n", b"abc", b""),
    (b"3;name=value;other\r\nabc\r\n0;last\r\n\r\n", b"abc", b""),
    (b"3 ; spaced\r\nabc\r\n0\r\n\r\n", b"abc", b""),
    (b"3\r\n\r\n\r\r\n0\r\n\r\n", b"\r\n\r", b""),
    (b"3\r\nabc\r\n0\r\nx-sum: 1\r\nx-more: 2\r\n\r\n", b"abc", b""),
]


@pytest.mark.parametrize("wire, data, tail", CASES)
def test_bodies_are_read_in_any_pieces(wire: bytes, data: bytes, tail: bytes) -> None:
    """The decoder yields the same data from one piece and from single bytes, and keeps the bytes behind the body."""
    assert decode([wire]) == (data, True, tail)
    decoder, read = ChunkedDecoder(), b""
    body = wire.removesuffix(tail)
    for byte in body:
        assert not decoder.has_ended
        read += decoder.feed(bytes([byte]))
    assert (read, decoder.has_ended) == (data, True)


@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.lists(st.integers(0, 5000), max_size=8))
def test_what_is_encoded_is_decoded(chunks: list[bytes], places: list[int]) -> None:
    """Any data, encoded in any chunks and cut anywhere, decodes to itself."""
    wire = b"".join(map(encode_chunk, chunks)) + LAST_CHUNK
    assert decode(cut(wire, places)) == (b"".join(chunks), True, b"")


PARTS = st.sampled_from(
    [
        *(
            b"3\r\nabc\r\n",
            b"3\r\n",
            b"abc",
            b"\r\n",
            b"\r",
            b"\n",
            b"0\r\n",
            LAST_CHUNK,
            b"5;x=y\r\nhello\r\n",
            b"1f\r\n",
        ),
        *(
            b"x-sum: 1\r\n",
            b" ",
            b";",
            b"a" * 130,
            b"f" * 8,
            b"A\r\n0123456789\r\n",
            b"0;last\r\n",
            b"x:" + b"y" * 5000,
        ),
    ]
)
BYTES = st.one_of(st.binary(max_size=60), st.lists(PARTS, max_size=8).map(b"".join))


@given(BYTES, st.lists(st.integers(0, 12000), max_size=4))
def test_garbage_is_refused_by_a_value_error(garbage: bytes, places: list[int]) -> None:
    """Garbage raises only ValueError, and cutting it into pieces does not change the outcome."""
    outcomes: list[object] = []
    for pieces in ([garbage], cut(garbage, places)):
        try:
            outcomes.append(decode(pieces))
        except ValueError:
            outcomes.append(None)
    assert outcomes[0] == outcomes[1]


@given(st.lists(st.binary(min_size=1, max_size=5000), max_size=4), st.booleans())
def test_the_fast_ways_agree_with_the_slow_one(chunks: list[bytes], last: bool) -> None:
    """A body that the fast paths accept leaves the decoder in the same state as a full parse."""
    wire = b"".join(map(encode_chunk, chunks)) + (LAST_CHUNK if last else b"")
    for fast in (ChunkedDecoder.takes_plain_chunk, ChunkedDecoder.takes_whole):
        quick, slow = ChunkedDecoder(), ChunkedDecoder()
        if fast(quick, wire):
            slow.feed(wire)
            assert quick.has_ended == slow.has_ended == last
            assert repr(quick) == repr(slow)
            assert len(chunks) <= 1
        elif len(chunks) == 1 and not last and len(chunks[0]) < 4096:
            raise AssertionError("one small chunk is what it is for")


@given(st.lists(BYTES, max_size=6))
def test_the_fast_ways_take_nothing_that_is_malformed(pieces: list[bytes]) -> None:
    """At any point of a body the fast paths accept only complete chunks, and never what a full parse rejects."""
    for fast in (ChunkedDecoder.takes_plain_chunk, ChunkedDecoder.takes_whole):
        quick, slow = ChunkedDecoder(), ChunkedDecoder()
        for piece in pieces:
            if quick.has_ended:
                break
            if fast(quick, piece):
                assert slow.feed(piece) == decode([piece])[0]
                assert slow.tail == b""
            else:
                try:
                    data = slow.feed(piece)
                except ValueError:
                    with pytest.raises(ValueError):
                        quick.feed(piece)
                    break
                assert quick.feed(piece) == data
            assert (repr(quick), quick.has_ended) == (repr(slow), slow.has_ended)


@pytest.mark.parametrize("opening, longest", [(b"3;", 256), (b"0\r\nx:", 8192)], ids=["a size line", "a trailer"])
def test_lines_have_a_limit(opening: bytes, longest: int) -> None:
    """A line has a maximum length, however it is cut; a line that never ends is rejected once it is too long."""
    start = opening.rpartition(b"\n")[2]
    for excess in (0, 1):
        wire = opening + b"a" * (longest - len(start) + excess) + b"\r\n"
        for pieces in ([wire], cut(wire, [longest - 1]), cut(wire, [len(wire) - 1]), cut(wire, list(range(len(wire))))):
            if not excess:
                decode(pieces)
            else:
                with pytest.raises(ValueError, match="too long"):
                    decode(pieces)
    with pytest.raises(ValueError, match="too long"):
        ChunkedDecoder().feed(opening + b"a" * (longest + 2))


@pytest.mark.parametrize(
    "before, data",
    [
        (b"1", b"3\r\nabc\r\n"),  # in a size: it becomes 13
        (b"3;x=", b"3\r\nabc\r\n"),
        (b"20\r\n", b"3\r\nabc\r\n"),  # in a chunk's data
        (b"3\r\nabc", b"3\r\nabc\r\n"),
        (b"3\r\nabc\r", b"3\r\nabc\r\n"),
        (b"0\r\n", b"3\r\nabc\r\n"),  # in the trailers
        (b"0\r\n\r\n", b"3\r\nabc\r\n"),  # after the end
        (b"0\r\n", LAST_CHUNK),
    ],
)
def test_the_fast_ways_wait_for_a_chunk_to_end(before: bytes, data: bytes) -> None:
    """Within a chunk the fast paths do not accept data that looks like a new chunk."""
    decoder = ChunkedDecoder()
    decoder.feed(before)
    assert not decoder.takes_plain_chunk(data)
    assert not decoder.takes_whole(data)
