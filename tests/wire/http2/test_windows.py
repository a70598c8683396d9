"""Flow control against the `h2` library: it raises where a window is exceeded."""

import pytest
from h2.events import DataReceived, Event, StreamEnded
from h2.exceptions import FlowControlError
from h2.settings import SettingCodes
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.wire.http2.hpack import CachedHeaders
from gateway.wire.http2.state import Http2Limits
from tests.wire.http2.reference import TRAILERS, exchange, peer, told
from tests.wire.http2.sides import REPLY, REQUEST, Side

# What the reader of a body may do meanwhile: read bytes, or change its settings.
STEPS = st.one_of(
    st.tuples(st.just("take"), st.integers(1, 60_000)),
    st.tuples(st.just("window"), st.sampled_from([0, 1, 10, 1000, 16_384, 65_535, 200_000])),
    st.tuples(st.just("frame"), st.sampled_from([16_384, 20_000, 100_000])),
    st.tuples(st.just("table"), st.sampled_from([0, 40, 200, 4096, 10_000])),
    st.tuples(st.just("block"), st.just(0)),
    st.tuples(st.just("unblock"), st.just(0)),
)
CODES = {
    "window": SettingCodes.INITIAL_WINDOW_SIZE,
    "frame": SettingCodes.MAX_FRAME_SIZE,
    "table": SettingCodes.HEADER_TABLE_SIZE,
}


class Reading:
    """An `h2` side that reads bodies."""

    def __init__(self, *, is_client: bool) -> None:
        self.peer = peer(is_client=is_client)
        self.bodies: dict[int, bytes] = {}
        self.untaken: dict[int, int] = {}
        self.ended: list[int] = []

    def take_events(self, events: list[Event]) -> None:
        for event in told(events, DataReceived):
            self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
            self.untaken[event.stream_id] = self.untaken.get(event.stream_id, 0) + event.flow_controlled_length
        self.ended += [event.stream_id for event in told(events, StreamEnded)]

    def take(self, most: int) -> None:
        for stream_id, size in self.untaken.items():
            if size:
                self.peer.acknowledge_received_data(min(size, most), stream_id)
                self.untaken[stream_id] -= min(size, most)


@settings(max_examples=60, deadline=None)
@given(st.booleans(), st.lists(st.integers(0, 150_000), min_size=1, max_size=3), st.lists(STEPS, max_size=12))
def test_windows_are_never_exceeded(is_client: bool, sizes: list[int], steps: list[tuple[str, int]]) -> None:
    """However the reader shrinks its windows, even below zero, and changes its frame and table sizes, `h2` finds no
    violation; once it reads everything, each body is complete and each stream has ended."""
    side, reading = Side(is_client=is_client), Reading(is_client=not is_client)
    peer_ = reading.peer
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    for number, body in enumerate(bodies):
        stream_id = 2 * number + 1
        if is_client:
            side.open()
        else:
            peer_.send_headers(stream_id, REQUEST, end_stream=True)
            reading.take_events(exchange(side, peer_))
            side.received[stream_id].stream.send_headers(CachedHeaders(REPLY))
        stream = side.received[stream_id].stream
        stream.send_data(body[:30_000])
        stream.send_data(body[30_000:], number == 0)
        if number:
            stream.send_trailers(CachedHeaders(TRAILERS))
    reading.take_events(exchange(side, peer_))
    for step, value in [*steps, ("unblock", 0), ("window", 65_535)]:
        if step == "take":
            reading.take(value)
        elif step == "block":
            side.http2.is_blocked = True
        elif step == "unblock":
            side.http2.unblock()
        else:
            peer_.update_settings({CODES[step]: value})
        reading.take_events(exchange(side, peer_))
    while any(reading.untaken.values()):
        reading.take(1 << 20)
        reading.take_events(exchange(side, peer_))
    assert [reading.bodies.get(2 * number + 1, b"") for number in range(len(bodies))] == bodies
    assert sorted(reading.ended) == [2 * number + 1 for number in range(len(bodies))]
    assert not side.http2.waiting and side.http2.failed is None
    for received in side.received.values():
        assert not received.stream.is_waiting and received.stream.is_sent


def test_a_window_below_nothing_hangs_nobody() -> None:
    """Section 6.9.2: on a stream with a negative window nothing is sent, not even an empty DATA frame (which `h2` would
    reject), until the window is positive again."""
    side, reading = Side(is_client=False), Reading(is_client=True)
    peer_ = reading.peer
    peer_.send_headers(1, REQUEST, end_stream=True)
    exchange(side, peer_)
    stream = side.received[1].stream
    stream.send_headers(CachedHeaders(REPLY))
    stream.send_data(bytes(60_000))
    reading.take_events(exchange(side, peer_))
    peer_.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 10})
    exchange(side, peer_)
    assert stream.send_window < 0
    stream.send_data(b"", True)
    side.http2.unblock()
    assert side.take() == b"" and stream.is_waiting
    reading.take(60_000)
    reading.take_events(exchange(side, peer_))
    assert reading.ended == [1] and not side.http2.streams


def test_an_end_without_data_needs_no_window() -> None:
    """Section 6.9.1: a stream can end while both windows and the transport are blocked."""
    side, reading = Side(is_client=False), Reading(is_client=True)
    peer_ = reading.peer
    peer_.send_headers(1, REQUEST, end_stream=True)
    exchange(side, peer_)
    stream = side.received[1].stream
    stream.send_headers(CachedHeaders(REPLY))
    stream.send_data(bytes(65_535))
    reading.take_events(exchange(side, peer_))
    assert stream.send_window == side.http2.send_window == 0
    side.http2.is_blocked = True
    stream.send_data(b"", True)
    reading.take_events(exchange(side, peer_))
    assert reading.ended == [1] and not side.http2.streams


@pytest.mark.parametrize("is_client", [False, True])
def test_credit_stops_the_peer(is_client: bool) -> None:
    """A receiver that reads nothing gets one window of data; credit for half of it lets the peer continue."""
    limits = Http2Limits(window_bytes=100_000)
    side, peer_ = Side(is_client=is_client, limits=limits, credits=False), peer(is_client=not is_client)
    if is_client:
        side.open(ended=True)
        exchange(side, peer_)
        peer_.send_headers(1, REPLY)
    else:
        exchange(side, peer_)
        peer_.send_headers(1, REQUEST)

    def send_all() -> None:
        while (room := peer_.local_flow_control_window(1)) > 0:
            peer_.send_data(1, bytes(min(room, peer_.max_outbound_frame_size)))
            exchange(side, peer_)

    send_all()
    received = side.received[1]
    assert len(received.body) == 100_000
    with pytest.raises(FlowControlError):
        peer_.send_data(1, b"x")
    received.stream.credit(49_999)
    exchange(side, peer_)
    assert peer_.local_flow_control_window(1) == 0
    received.stream.credit(1)
    exchange(side, peer_)
    send_all()
    assert len(received.body) == 150_000


def test_the_connections_window_stays_open() -> None:
    """Unread streams do not block others, and data of reset streams counts against the connection's window only."""
    side, peer_ = Side(is_client=False, credits=False), peer(is_client=True)
    exchange(side, peer_)
    before = peer_.outbound_flow_control_window
    for stream_id in range(1, 41, 2):
        peer_.send_headers(stream_id, REQUEST)
        for _ in range(4):
            peer_.send_data(stream_id, bytes(60_000))
        exchange(side, peer_)
    assert before - peer_.outbound_flow_control_window < 2 << 20
