"""Arbitrary bytes never raise an exception and never leave an inconsistent state."""

from collections.abc import Callable
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.wire.http2 import frames
from gateway.wire.http2.frames import frame
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.peer_state import PeerState
from gateway.wire.http2.state import Http2Limits
from tests.wire.http2.sides import OPENING, REPLY, REQUEST, SETTINGS, Side, client, cut, data, errors, headers, server
from tests.wire.http2.test_conversations import Answering, a_clients_conversation, a_servers_conversation

SMALL = Http2Limits(max_streams=5, max_resets=10)
FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1)),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from([bytes(4), bytes(5), bytes(8), b"\0\0\1\0", b"\x83\x86\x84", b"\x88", b"\0\4\0\0\0\0"]),
    ),
)
GOOD = st.sampled_from(
    [
        headers(1),
        headers(3, ended=True),
        headers(5, [*REQUEST, (b"content-length", b"3")]),
        headers(1, [(b"a", b"b")], ended=True),
        headers(1, REPLY),
        headers(3, [*REPLY, (b"content-length", b"3")]),
        headers(7, b"\x83\x86\x84\x40\x01a\x01b", flags=0),
        frame(frames.CONTINUATION, frames.END_HEADERS, 7, b""),
        data(1, b"abc"),
        data(5, b"abc", ended=True),
        data(3, b"abc", ended=True, padding=2),
        frames.window_update(0, 1000),
        frames.window_update(1, 1000),
        frames.rst_stream(3, 8),
        frames.goaway(3, 0),
        frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 2, frames.Setting.HEADER_TABLE_SIZE: 50}),
        frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 100_000}),
    ]
)
BYTES = st.one_of(
    st.lists(st.one_of(GOOD, GOOD, FRAMES), max_size=12).map(b"".join),
    st.lists(st.one_of(GOOD, FRAMES, st.binary(max_size=20)), max_size=12).map(b"".join),
)


def is_consistent(side: Side) -> None:
    """The invariants between any two calls; `Side` itself checks that no event is repeated or late."""
    http2 = side.http2
    cut(side.sent.removeprefix(frames.PREFACE))  # the bytes sent are complete frames
    assert set(http2.waiting) <= set(http2.streams.values())
    if http2.failed is not None:
        assert not http2.streams
        assert errors(side.sent.removeprefix(frames.PREFACE))[-1] == (0, http2.failed.code)
        assert side.sent.endswith(http2.failed.message.encode()[:256])
    for stream_id, received in side.received.items():
        stream = received.stream
        is_over = received.reset is not None or (stream.is_sent and stream.peer_state is PeerState.ENDED)
        assert (stream_id in http2.streams) != is_over
        assert stream.send_window >= 0 or stream_id not in http2.streams or http2.peer_window < frames.DEFAULT_WINDOW
        assert http2.send_window >= 0


def a_server() -> Side:
    return Answering(is_client=False, limits=SMALL)


def a_client() -> Side:
    side = Side(is_client=True, limits=SMALL)
    for number in range(3):
        received = side.open(ended=number == 0)
        if number:
            received.stream.send_data(bytes(40_000), number == 1)
    return side


def throw(make: Callable[[], Side], pieces: list[bytes]) -> Side:
    side = make()
    for piece in pieces:
        side.feed(piece)
        side.take()
        is_consistent(side)
    side.http2.unblock()
    side.http2.lose("the connection was lost")
    is_consistent(side)
    assert all(received.reset is not None or received.ended for received in side.received.values())
    return side


@settings(max_examples=300, deadline=None)
@given(st.booleans(), BYTES, st.lists(st.integers(0, 400), max_size=4))
@example(True, frames.settings({frames.Setting.INITIAL_WINDOW_SIZE: 0}) + frames.goaway(1, 0), [])
def test_any_frames(is_client: bool, sent: bytes, cuts: list[int]) -> None:
    """Frames in any order, some of them garbage: every stream ends once, and in the same way however the bytes are
    cut."""
    make, opening = (a_client, SETTINGS) if is_client else (a_server, OPENING)
    sent = opening + sent
    edges = [0, *sorted(cuts), len(sent)]
    whole = throw(make, [sent])
    pieces = throw(make, [sent[start:stop] for start, stop in pairwise(edges)])
    assert errors_of(whole) == errors_of(pieces)
    for stream_id, received in whole.received.items():
        again = pieces.received[stream_id]
        assert (received.fields, received.trailers, received.ended, received.reset) == (
            again.fields,
            again.trailers,
            again.ended,
            again.reset,
        )
        assert received.reset is not None or received.body == again.body


def errors_of(side: Side) -> list[tuple[int, frames.ErrorCode]]:
    return errors(side.sent.removeprefix(frames.PREFACE))


@settings(max_examples=200, deadline=None)
@given(st.booleans(), st.data())
def test_mutations(is_client: bool, draw: st.DataObject) -> None:
    """A valid conversation with a few changed bytes leaves the connection consistent."""
    valid = a_servers_conversation() if is_client else a_clients_conversation()
    mutated = bytearray(valid)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(mutated) - 1))
        match draw.draw(st.sampled_from(["set", "flip", "insert", "remove", "repeat"])):
            case "set":
                mutated[at] = draw.draw(st.integers(0, 255))
            case "flip":
                mutated[at] ^= 1 << draw.draw(st.integers(0, 7))
            case "insert":
                mutated[at:at] = draw.draw(st.binary(min_size=1, max_size=12))
            case "remove":
                del mutated[at : at + draw.draw(st.integers(1, 12))]
            case _:
                mutated[at:at] = mutated[at : at + draw.draw(st.integers(1, 40))]
        mutated = mutated or bytearray(b"x")
    size = draw.draw(st.sampled_from([1, 5, 30, 1000]))
    sent = bytes(mutated)
    throw(
        a_client if is_client else a_server,
        [sent[at : at + size] for at in range(0, len(sent), size)],
    )


@settings(max_examples=200, deadline=None)
@given(st.booleans(), st.binary(max_size=200))
def test_any_bytes(is_client: bool, sent: bytes) -> None:
    """Bytes that are not HTTP/2 leave the connection consistent."""
    throw(a_client if is_client else a_server, [sent])
    side = (client() if is_client else server()).feed(sent)
    side.take()


class Fickle(Side):
    """A receiver that resets all streams on every event."""

    def data_received(self, stream: object, data: bytes, ended: bool) -> None:
        for received in self.received.values():
            received.stream.reset()
            received.stream.send_headers(CachedHeaders(REPLY))

    def stream_reset(self, stream: object, code: int, why: str) -> None:
        self.data_received(stream, b"", False)

    def headers_received(self, stream: object, block: object, ended: bool) -> None:
        self.data_received(stream, b"", ended)

    def trailers_received(self, stream: object, block: object) -> None:
        self.data_received(stream, b"", True)

    def drained(self, stream: object) -> None:
        self.data_received(stream, b"", True)


@settings(max_examples=200, deadline=None)
@given(st.booleans(), BYTES)
def test_receivers_that_end_things_while_they_are_told(is_client: bool, sent: bytes) -> None:
    """A receiver may reset any stream during any event; nothing more is sent on that stream, and none of its state
    remains."""
    side = Fickle(is_client=is_client, limits=SMALL)
    if is_client:
        for _ in range(3):
            side.open().stream.send_data(bytes(66_000))
    side.feed((SETTINGS if is_client else OPENING) + sent)
    side.take()
    over: set[int] = set()
    for kind, _, stream_id, _ in cut(side.sent.removeprefix(frames.PREFACE)):
        assert stream_id not in over or kind == frames.RST_STREAM
        if kind == frames.RST_STREAM:
            over.add(stream_id)
