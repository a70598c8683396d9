"""The fast path between two streams behaves like the general one, for any data and any windows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.grpc import Boundaries, framed
from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Block
from gateway.wire.http2.frames import Setting
from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.relay_fast_path import RelayFastPath
from gateway.wire.http2.stream import Stream
from tests.wire.http2.sides import REPLY, Side, headers, server

MARK = 0x0A
MESSAGE = st.tuples(st.sampled_from([b"", b"\x0a", b"\x0aerror", b"\x12fine", b"\x12" * 5000]), st.booleans())
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 12_000)),
        st.tuples(st.just("message"), st.just(0)),
        st.tuples(st.just("credit"), st.sampled_from([1, 99, 20_000])),
        st.tuples(st.just("block"), st.just(0)),
        st.tuples(st.just("unblock"), st.just(0)),
    ),
    max_size=30,
)


class Relay:
    """Relays to a stream of a server, through a `RelayFastPath` or through two calls."""

    def __init__(self, *, is_short: bool) -> None:
        self.side: Side = server()
        self.side.feed(frames.settings({Setting.INITIAL_WINDOW_SIZE: 3000}), headers(1, ended=True))
        self.target = self.side.received[1].stream
        self.target.send_headers(CachedHeaders(REPLY))
        self.boundaries = Boundaries(MARK)
        self.owed = 0
        self.paid = 0
        self.reports: list[str] = []
        self._fast_path = RelayFastPath(self, self.target) if is_short else None

    def relay(self, data: bytes) -> None:
        if self._fast_path is not None:
            self._fast_path.data_received(self.target, data, False)
        else:
            self.boundaries.feed(data)
            self.target.send_data(data)
            self.owed += len(data)
            if self.owed >= 16 * 1024 and not self.target.is_waiting:
                self.pay()

    def pay(self) -> None:
        self.paid, self.owed = self.paid + self.owed, 0

    @property
    def state(self) -> tuple[object, ...]:
        found, target = self.boundaries, self.target
        counts = found.count, found.num_marked, found.is_between_messages, self.owed, self.paid
        return (*counts, target.num_waiting, target.send_window, self.side.http2.send_window, self.side.take())

    def headers_received(self, stream: Stream, block: Block, ended: bool) -> None:
        self.reports.append("headers")

    def data_received(self, stream: Stream, data: bytes, ended: bool) -> None:
        self.reports.append(f"{len(data)} bytes{', ended' if ended else ''}")

    def trailers_received(self, stream: Stream, block: Block) -> None:
        self.reports.append("trailers")

    def stream_reset(self, stream: Stream, code: int, why: str) -> None:
        self.reports.append(f"reset: {why}")

    def drained(self, stream: Stream) -> None:
        self.reports.append("drained")


@settings(max_examples=150, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=20), STEPS)
def test_both_ways_do_the_same(messages: list[tuple[bytes, bool]], steps: list[tuple[str, int]]) -> None:
    """Both paths count and send alike: complete messages, parts of messages, more than the windows allow, and while
    blocked."""
    whole = [framed(message, compressed=compressed) for message, compressed in messages]
    rest = b"".join(whole)
    short, long = Relay(is_short=True), Relay(is_short=False)
    for step, value in steps:
        piece = b""
        if step == "pass":
            piece, rest = rest[:value], rest[value:]
        elif step == "message" and whole:  # piece ends coincide with message ends again
            while whole and len(b"".join(whole)) > len(rest):
                whole.pop(0)
            size = len(rest) - len(b"".join(whole)) or (len(whole[0]) if whole else 0)
            piece, rest = rest[:size], rest[size:]
        for relay in (short, long):
            http2 = relay.side.http2
            if piece:
                relay.relay(piece)
            elif step == "credit":
                relay.side.feed(frames.window_update(1, value))
            elif step == "block":
                http2.is_blocked = True
            elif step == "unblock":
                http2.unblock()
        assert short.state == long.state


@pytest.mark.parametrize("data", [b"", b"x"])
def test_whoever_had_the_stream_hears_all_but_data(data: bytes) -> None:
    relay = Relay(is_short=True)
    fast_path = RelayFastPath(relay, relay.target)
    block = Block(REPLY)
    fast_path.headers_received(relay.target, block, False)
    fast_path.data_received(relay.target, framed(b"one"), False)
    fast_path.drained(relay.target)
    fast_path.data_received(relay.target, data, True)
    fast_path.trailers_received(relay.target, block)
    fast_path.stream_reset(relay.target, 8, "gone")
    assert relay.reports == ["headers", "drained", f"{len(data)} bytes, ended", "trailers", "reset: gone"]
    assert (relay.boundaries.count, relay.owed) == (1, len(framed(b"one")))


def test_a_target_that_is_over_takes_nothing() -> None:
    relay = Relay(is_short=True)
    relay.side.take()
    relay.target.reset()
    relay.side.take()
    relay.relay(framed(b"one"))
    assert relay.side.take() == b""
