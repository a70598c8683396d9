"""Sending within windows: random walks against a model that only counts."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.http2 import frames
from gateway.wire.http2.frames import DATA, END_STREAM, ErrorCode, Setting
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.peer_state import PeerState
from tests.wire.http2.sides import REPLY, Side, cut, headers, server

STREAMS = (1, 3, 5)
SIZE = st.sampled_from([0, 1, 100, 4096, 4097, 16_384, 16_385, 40_000, 100_000])
ID = st.sampled_from(STREAMS)
STEPS = st.one_of(
    st.tuples(st.just("send"), ID, SIZE),
    st.tuples(st.just("send"), ID, SIZE),
    st.tuples(st.just("end"), ID, SIZE),
    st.tuples(st.just("trailers"), ID, st.just(0)),
    st.tuples(st.just("reset"), ID, st.just(0)),
    st.tuples(st.just("credit"), st.sampled_from((0, *STREAMS)), st.sampled_from([1, 99, 20_000, 70_000])),
    st.tuples(st.just("window"), st.just(0), st.sampled_from([0, 5, 30_000, 65_535, 100_000])),
    st.tuples(st.just("frame"), st.just(0), st.sampled_from([16_384, 30_000])),
    st.tuples(st.just("block"), st.just(0), st.just(0)),
    st.tuples(st.just("unblock"), st.just(0), st.just(0)),
)


class Walk:
    """A server's three replies, and the windows as the peer counts them."""

    def __init__(self) -> None:
        self.side = server()
        for stream_id in STREAMS:
            self.side.feed(headers(stream_id, ended=True))
            self.side.received[stream_id].stream.send_headers(CachedHeaders(REPLY))
        self.side.take()
        self.windows = dict.fromkeys((0, *STREAMS), frames.DEFAULT_WINDOW)
        self.initial = frames.DEFAULT_WINDOW
        self.max_frame = frames.MIN_MAX_FRAME_BYTES
        self.given = dict.fromkeys(STREAMS, b"")
        self.got = dict.fromkeys(STREAMS, b"")
        self.closing: dict[int, str] = {}  # how a stream is to end
        self.ended: list[int] = []
        self.num_sent = 0

    def step(self, step: str, stream_id: int, value: int) -> None:
        http2 = self.side.http2
        streams = {id_: received.stream for id_, received in self.side.received.items()}
        before = {id_: (stream.is_waiting, self.side.received[id_].num_drained) for id_, stream in streams.items()}
        match step:
            case "send" | "end" if stream_id not in self.closing:
                self.num_sent += 1
                body = bytes([self.num_sent % 256]) * value
                self.given[stream_id] += body
                if step == "end":
                    self.closing[stream_id] = step
                streams[stream_id].send_data(body, step == "end")
            case "trailers" if stream_id not in self.closing:
                self.closing[stream_id] = step
                streams[stream_id].send_trailers(CachedHeaders([(b"grpc-status", b"0")]))
            case "reset" if stream_id not in self.closing:
                self.closing[stream_id] = step
                streams[stream_id].reset(ErrorCode.CANCEL)
            case "credit":
                self.windows[stream_id] += value
                self.side.feed(frames.window_update(stream_id, value))
            case "window":
                for id_ in STREAMS:
                    self.windows[id_] += value - self.initial
                self.initial = value
                self.side.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: value}))
            case "frame":
                self.max_frame = value
                self.side.feed(frames.settings({Setting.MAX_FRAME_SIZE: value}))
            case "block":
                http2.is_blocked = True
            case "unblock":
                http2.unblock()
        self.read_what_was_sent(was_blocked=http2.is_blocked)
        for id_, (was_waiting, num_drained) in before.items():
            is_drained = was_waiting and not streams[id_].is_waiting and self.closing.get(id_) != "reset"
            assert self.side.received[id_].num_drained - num_drained == is_drained
            waits = len(self.given[id_]) - len(self.got[id_])
            assert self.closing.get(id_) == "reset" or streams[id_].num_waiting == waits

    def read_what_was_sent(self, *, was_blocked: bool) -> None:
        for kind, flags, stream_id, payload in cut(self.side.take()):
            if kind == DATA:
                assert stream_id not in self.ended and self.closing.get(stream_id) != "reset"
                assert len(payload) <= self.max_frame
                self.windows[0] -= len(payload)
                self.windows[stream_id] -= len(payload)
                assert not payload or (self.windows[0] >= 0 and not was_blocked)
                assert self.windows[stream_id] >= 0
                self.got[stream_id] += payload
            if flags & END_STREAM and kind in (DATA, frames.HEADERS):
                self.ended.append(stream_id)
        for stream_id, stream in self.side.http2.streams.items():
            assert stream.send_window == self.windows[stream_id]
            assert self.given[stream_id].startswith(self.got[stream_id])
            could_go_on = min(self.windows[0], self.windows[stream_id]) > 0 and not self.side.http2.is_blocked
            assert not (stream.num_waiting and could_go_on)
        assert self.side.http2.send_window == self.windows[0]


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_random_walks(steps: list[tuple[str, int, int]]) -> None:
    """Bytes arrive in order, in frames of legal size, within both windows; whatever may be sent is sent at once.
    `drained` is called exactly when the waiting bytes are gone. With open windows everything arrives."""
    walk = Walk()
    for step in steps:
        walk.step(*step)
    walk.step("unblock", 0, 0)
    walk.step("window", 0, 100_000)
    for stream_id in (*STREAMS, 0):
        walk.step("credit", stream_id, 1 << 29)
    assert not walk.side.http2.waiting
    for stream_id in STREAMS:
        if walk.closing.get(stream_id) != "reset":
            assert walk.got[stream_id] == walk.given[stream_id]
            assert (stream_id in walk.ended) == (stream_id in walk.closing)
    assert set(walk.side.http2.streams) == set(STREAMS) - set(walk.closing)


def sent_sizes(side: Side) -> list[tuple[int, int]]:
    return [(stream_id, len(payload)) for kind, _, stream_id, payload in cut(side.take()) if kind == DATA]


def test_streams_take_turns() -> None:
    """A stream with much data does not take the connection's whole window."""
    side = server()
    side.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 1 << 20}))
    streams: list[Any] = []
    for stream_id in STREAMS:
        side.feed(headers(stream_id, ended=True))
        streams.append(side.received[stream_id].stream)
        streams[-1].send_headers(CachedHeaders(REPLY))
        streams[-1].send_data(bytes(100_000))
    side.take()
    side.feed(frames.window_update(0, 100_000))
    assert sent_sizes(side) == [
        *((1, 16_384), (3, 16_384), (5, 16_384)),
        *((1, 16_384), (3, 16_384), (5, 16_384), (1, 1696)),
    ]


def test_a_long_message_is_not_copied_again_and_again() -> None:
    """Waiting data stays the same object, however many frames it takes."""
    side = server()
    side.feed(headers(1, ended=True))
    stream = side.received[1].stream
    message = bytes(10_000_000)
    stream.send_headers(CachedHeaders(REPLY))
    stream.send_data(message)
    for _ in range(100):
        side.feed(frames.window_update(1, 20_000), frames.window_update(0, 20_000))
        side.take()
    assert stream.waiting[0] is message


def test_a_stream_that_is_over_sends_nothing() -> None:
    """After the peer's reset, sending on the stream is a no-op."""
    side = server()
    side.feed(headers(1, ended=True))
    stream = side.received[1].stream
    side.feed(frames.rst_stream(1, ErrorCode.CANCEL))
    stream.send_headers(CachedHeaders(REPLY))
    stream.send_data(b"x")
    stream.send_data(b"", True)
    stream.send_trailers(CachedHeaders([(b"grpc-status", b"0")]))
    stream.reset()
    stream.credit(1 << 20)
    assert side.take() == b"" and side.num_closed == 1
    assert (stream.is_sent, stream.peer_state, stream.num_waiting) == (True, PeerState.ENDED, 0)
    assert not side.http2.streams
