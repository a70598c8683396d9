"""A reply that is there at once is received and sent as one that comes piece by piece."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block, Field
from gateway.wire.http2.frames import DATA, END_HEADERS, END_STREAM, HEADERS, Setting
from gateway.wire.http2.hpack import CachedHeaders, literals
from gateway.wire.http2.state import Http2Limits
from gateway.wire.http2.stream import Stream
from tests.wire.http2.sides import REPLY, Side, headers, server

OK: list[Field] = [(b"grpc-status", b"0")]
OPENINGS = st.sampled_from(
    [
        literals(REPLY),
        literals([*REPLY, (b"content-length", b"3")]),
        literals([(b":status", b"100")]),
        literals([(b":status", b"503")]),
        literals([(b"no-status", b"1")]),
        b"\x40\x01a\x01b" + literals(REPLY),
        b"\xff\xff\xff\xff\xff\xff",
        literals([*REPLY, (b"long", b"l" * 9000)]),
    ]
)
TRAILERS = st.sampled_from([literals(OK), literals(REPLY), b"\xbe", b"\xff\xff\xff\xff\xff\xff", b"", b"\x00" * 9000])
FRAMES = st.tuples(st.sampled_from([1, 3, 0]), st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM]))
USUAL = ((1, END_HEADERS), (1, 0), (1, END_HEADERS | END_STREAM))


class WholeReplies(Side):
    """A client whose streams take whole replies."""

    num_whole = 0

    def reply_received(self, stream: Stream, block: Block, data: bytes, trailers: Block) -> None:
        self.num_whole += 1
        self.headers_received(stream, block, False)
        self.data_received(stream, data, False)
        self.trailers_received(stream, trailers)


def received(data: bytes, pieces: int, *, takes_whole: bool) -> tuple[WholeReplies, tuple[object, ...]]:
    """What a client with a request under way makes of this."""
    side = WholeReplies(is_client=True, limits=Http2Limits(window_bytes=100_000, max_header_bytes=8000))
    side.feed(frames.settings({}))
    side.open(ended=True).stream.takes_whole_reply = takes_whole
    side.open().stream.takes_whole_reply = takes_whole
    side.take()
    size = -(-len(data) // pieces)
    side.feed(*[data[at : at + size] for at in range(0, len(data), size)])
    http2 = side.http2
    if http2.failed is not None:  # what came before the error may have been received or not
        assert all(each.ended or each.reset is not None for each in side.received.values())
        return side, (http2.failed.code, side.take())
    ends = [each.outcome for each in side.received.values()], side.num_closed
    return side, (*ends, http2.owed, sorted(http2.streams), side.take())


@settings(max_examples=300, deadline=None)
@given(OPENINGS, st.sampled_from([0, 1, 3, 5000, 70_000]), TRAILERS, st.tuples(FRAMES, FRAMES, FRAMES), st.booleans())
@example(literals(REPLY), 3, literals(OK), USUAL, True)
@example(literals(REPLY), 3, literals(REPLY), USUAL, False)
def test_whole_and_in_steps(
    opening: bytes, size: int, trailers: bytes, shape: tuple[tuple[int, int], ...], is_cut: bool
) -> None:
    """Whatever the three frames hold: fields, body, trailers, errors and windows are those of a receiver in steps."""
    kinds = zip((HEADERS, DATA, HEADERS), (opening, bytes(size), trailers), shape, strict=True)
    data = b"".join([frames.frame(kind, flags, stream_id, payload) for kind, payload, (stream_id, flags) in kinds])
    data += frames.window_update(0, 5)
    _, expected = received(data, 1, takes_whole=False)
    side, found = received(data, 2 if is_cut else 1, takes_whole=True)
    assert found == expected
    if shape == USUAL and (opening, trailers, size, is_cut) == (literals(REPLY), literals(OK), 3, False):
        assert side.num_whole == 1


def sent(window: int, size: int, fields: list[Field], last: list[Field], *, is_whole: bool, is_blocked: bool) -> Side:
    """A server that has replied, and whose client has then opened the windows."""
    side = server()
    side.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: window}), headers(1, ended=True))
    side.http2.is_blocked = is_blocked
    stream = side.received[1].stream
    if is_whole:
        stream.send_reply(CachedHeaders(fields), literals([(b"x-id", b"1")]), b"d" * size, CachedHeaders(last))
    else:
        stream.send_headers(CachedHeaders(fields), literals([(b"x-id", b"1")]))
        stream.send_data(b"d" * size)
        stream.send_trailers(CachedHeaders(last))
    if is_blocked:
        side.http2.unblock()
    side.feed(frames.window_update(1, 100_000))
    return side


@pytest.mark.parametrize("is_blocked", [False, True], ids=["open", "blocked"])
@pytest.mark.parametrize("size", [0, 1, 2999, 3001, 4096, 4097, 20_000])
@pytest.mark.parametrize("long", ["", "opening", "trailers"])
def test_what_is_sent(size: int, long: str, is_blocked: bool) -> None:
    """The bytes of a whole reply are those of its parts, whatever waits for windows and however long the fields are."""
    more = [(b"long", b"l" * 40_000)]
    fields, last = REPLY + (more if long == "opening" else []), OK + (more if long == "trailers" else [])
    whole = sent(3000, size, fields, last, is_whole=True, is_blocked=is_blocked)
    parts = sent(3000, size, fields, last, is_whole=False, is_blocked=is_blocked)
    assert whole.take() == parts.take()
    assert whole.http2.send_window == parts.http2.send_window
    assert not whole.http2.streams and not parts.http2.streams
