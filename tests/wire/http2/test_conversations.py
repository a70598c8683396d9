"""Both sides of the gateway against the `h2` library, in pieces of any size."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    InformationalResponseReceived,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from gateway.wire.http2 import frames
from gateway.wire.http2.fields import Field
from gateway.wire.http2.frames import ErrorCode
from gateway.wire.http2.hpack import CachedHeaders
from tests.wire.http2.reference import TRAILERS, exchange, peer, told
from tests.wire.http2.sides import REPLY, REQUEST, Side, client, data, headers


class Answering(Side):
    """A server that answers each complete request with the request's own body."""

    def stream_opened(self, stream: Any, block: Any, ended: bool) -> None:
        super().stream_opened(stream, block, ended)
        if ended:
            self.answer(stream)

    def data_received(self, stream: Any, data: bytes, ended: bool) -> None:
        super().data_received(stream, data, ended)
        if ended:
            self.answer(stream)

    def trailers_received(self, stream: Any, block: Any) -> None:
        super().trailers_received(stream, block)
        self.answer(stream)

    def answer(self, stream: Any) -> None:
        stream.send_headers(CachedHeaders(REPLY))
        stream.send_data(self.received[stream.id].body)
        stream.send_trailers(CachedHeaders(TRAILERS))


def a_clients_conversation() -> bytes:
    """Requests of every shape, written by `h2` where it can."""
    peer_ = peer(is_client=True)
    peer_.update_settings({SettingCodes.HEADER_TABLE_SIZE: 1000, SettingCodes.MAX_FRAME_SIZE: 20_000})
    peer_.send_headers(1, REQUEST, priority_weight=200, priority_depends_on=0, priority_exclusive=True)
    peer_.send_data(1, b"padded", pad_length=11)
    peer_.ping(b"01234567")
    peer_.send_headers(3, [*REQUEST, (b"x-secret", b"\xc3\xa4"), (b"te", b"trailers")], end_stream=True)
    peer_.send_data(1, b"")
    peer_.prioritize(1, weight=16)
    peer_.send_data(1, b"-unpadded", pad_length=0)
    peer_.send_headers(1, [(b"checksum", b"1")], end_stream=True)
    peer_.send_headers(5, REQUEST)
    peer_.reset_stream(5, ErrorCodes.CANCEL)
    peer_.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 3, 0x4242: 7})
    peer_.send_headers(7, [*REQUEST, (b"content-length", b"0")], end_stream=True)
    peer_.increment_flow_control_window(1000)
    ours = [
        frames.frame(0xBE, 0x55, 1 << 31 | 9, b"an extension"),
        frames.frame(
            frames.HEADERS, frames.WITH_PRIORITY | frames.PADDED, 9, b"\x03\0\0\0\0\5" + b"\x83\x86" + bytes(3)
        ),
        frames.frame(frames.CONTINUATION, 0, 9, b""),
        frames.frame(frames.CONTINUATION, frames.END_HEADERS, 9, b"\x04\x02/a\x01\x01b"),
        data(9, b"ab" * 10),
        data(9, ended=True, padding=3),
        frames.window_update(0, 100),
        frames.window_update(9, 17),
        frames.window_update(1, 12),
    ]
    return bytes(peer_.data_to_send()) + b"".join(ours)


def a_servers_conversation() -> bytes:
    """Replies of every shape to the requests 1, 3, 5 and 7 of a gateway client."""
    peer_ = peer(is_client=False)
    peer_.receive_data(calling().sent)
    peer_.send_headers(1, [(b":status", b"100")])
    peer_.send_headers(1, [(b":status", b"103"), (b"link", b"</a>")])
    peer_.send_headers(1, [*REPLY, (b"content-length", b"8")])
    peer_.send_headers(3, [*REPLY, *TRAILERS], end_stream=True)
    peer_.ping(b"abcdefgh")
    peer_.send_data(1, b"body", pad_length=20)
    peer_.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    peer_.send_headers(5, [(b":status", b"204"), (b"content-length", b"0")])
    peer_.send_data(1, b"body")
    peer_.send_headers(1, TRAILERS, end_stream=True)
    peer_.send_data(5, b"", end_stream=True)
    peer_.reset_stream(7, ErrorCodes.ENHANCE_YOUR_CALM)
    peer_.close_connection(last_stream_id=7)
    return bytes(peer_.data_to_send()) + frames.frame(0xBE, 0, 3, b"x")


def calling() -> Side:
    """A gateway client with four open calls."""
    side = Side(is_client=True)
    for _ in range(4):
        side.open(ended=True)
    side.take()
    return side


def asked() -> Side:
    return Answering(is_client=False)


def fed(make: Callable[[], Side], pieces: Iterable[bytes]) -> tuple[Any, ...]:
    side = make().feed(*pieces)
    side.take()
    assert side.http2.failed is None
    return (
        {stream_id: received.outcome for stream_id, received in side.received.items()},
        side.num_closed,
        side.num_farewells,
    )


CONVERSATIONS: list[tuple[Callable[[], Side], bytes]] = [
    (asked, a_clients_conversation()),
    (calling, a_servers_conversation()),
]


@pytest.mark.parametrize("make, sent", CONVERSATIONS)
def test_however_a_conversation_is_cut(make: Callable[[], Side], sent: bytes) -> None:
    """Cut at any byte or into pieces of any size, the conversation yields the same events."""
    whole = fed(make, [sent])
    for at in range(1, len(sent)):
        assert fed(make, [sent[:at], sent[at:]]) == whole
    for size in (1, 2, 3, 7, 10, 64):
        assert fed(make, [sent[at : at + size] for at in range(0, len(sent), size)]) == whole


def test_what_a_server_of_ours_heard() -> None:
    """The server receives the requests that `h2` sent."""
    outcomes, num_closed, _ = fed(asked, [a_clients_conversation()])
    bare = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a"), (b":authority", b"b")]
    assert outcomes == {
        1: (REQUEST, b"padded-unpadded", [(b"checksum", b"1")], True, None),
        3: ([*REQUEST, (b"x-secret", b"\xc3\xa4"), (b"te", b"trailers")], b"", None, True, None),
        5: (REQUEST, b"", None, False, ErrorCode.CANCEL),
        7: ([*REQUEST, (b"content-length", b"0")], b"", None, True, None),
        9: (bare, b"ab" * 10, None, True, None),
    }
    assert num_closed == 5


def test_what_a_client_of_ours_heard() -> None:
    """The client skips interim replies, and accepts a reply without a body."""
    outcomes, num_closed, num_farewells = fed(calling, [a_servers_conversation()])
    assert outcomes == {
        1: ([*REPLY, (b"content-length", b"8")], b"bodybody", TRAILERS, True, None),
        3: ([*REPLY, *TRAILERS], b"", None, True, None),
        5: ([(b":status", b"204"), (b"content-length", b"0")], b"", None, True, None),
        7: (None, b"", None, False, ErrorCode.ENHANCE_YOUR_CALM),
    }
    assert num_closed == 4 and num_farewells == 1


def test_a_call_from_h2() -> None:
    """An `h2` client reads the server's settings and its complete reply; then both sides have closed the stream."""
    side, peer_ = Answering(is_client=False), peer(is_client=True)
    peer_.send_headers(1, REQUEST)
    peer_.send_data(1, b"hello", end_stream=True)
    events = exchange(side, peer_)
    changed = told(events, RemoteSettingsChanged)[0].changed_settings
    assert changed[SettingCodes.MAX_CONCURRENT_STREAMS].new_value == 1000
    assert changed[SettingCodes.MAX_FRAME_SIZE].new_value == 64 * 1024
    assert len(told(events, SettingsAcknowledged)) == 1
    assert told(events, ResponseReceived)[0].headers == REPLY
    assert b"".join(event.data for event in told(events, DataReceived)) == b"hello"
    assert told(events, TrailersReceived)[0].headers == TRAILERS
    assert len(told(events, StreamEnded)) == 1 and not side.http2.streams


def test_a_call_to_h2() -> None:
    """An `h2` server reads the client's request and trailers; the client skips an interim reply."""
    side, peer_ = Side(is_client=True), peer(is_client=False)
    received = side.open()
    received.stream.send_data(b"hello")
    received.stream.send_trailers(CachedHeaders([(b"a", b"b")]))
    events = exchange(side, peer_)
    assert told(events, RequestReceived)[0].headers == REQUEST
    assert told(events, TrailersReceived)[0].headers == [(b"a", b"b")]
    peer_.send_headers(1, [(b":status", b"103")])
    peer_.send_headers(1, REPLY)
    peer_.send_data(1, b"there", end_stream=True)
    assert not told(exchange(side, peer_), InformationalResponseReceived)
    assert received.outcome == (REPLY, b"there", None, True, None) and side.num_closed == 1


def test_long_fields_in_both_directions() -> None:
    """A block longer than a frame continues in CONTINUATION frames, in both directions."""
    long: list[Field] = [(b"x-%d" % number, b"v" * 9000) for number in range(5)]
    side, peer_ = Answering(is_client=False), peer(is_client=True)
    peer_.send_headers(1, REQUEST + long, end_stream=True)
    exchange(side, peer_)
    assert side.received[1].fields == REQUEST + long
    peer_.send_headers(3, REQUEST)
    exchange(side, peer_)
    side.received[3].stream.send_headers(CachedHeaders(REPLY + long))
    assert told(exchange(side, peer_), ResponseReceived)[0].headers == REPLY + long


def test_goaway_from_us() -> None:
    """The first GOAWAY still accepts streams; the second one names the last stream, and later streams are ignored."""
    side, peer_ = Answering(is_client=False), peer(is_client=True)
    peer_.send_headers(1, REQUEST)
    exchange(side, peer_)
    side.http2.leave(last_id=frames.MAX_WINDOW)
    on_their_way = headers(3)
    side.feed(on_their_way)
    warned = told(peer_.receive_data(side.take()), ConnectionTerminated)
    assert [(event.error_code, event.last_stream_id) for event in warned] == [(0, frames.MAX_WINDOW)]
    side.http2.leave()
    side.feed(headers(5, [*REQUEST, (b"late", b"1")]), data(5, b"x"), headers(5, [(b"a", b"b")], ended=True))
    side.feed(frames.rst_stream(5, 8), frames.window_update(5, 1))
    side.feed(data(1, b"one", ended=True), data(3, b"three", ended=True))
    sent = side.take()
    assert frames.goaway(3, 0) in sent and side.http2.failed is None
    assert sorted(side.received) == [1, 3] and not side.http2.streams
    side.http2.leave(last_id=frames.MAX_WINDOW)
    side.http2.leave()
    assert side.take() == 2 * frames.goaway(3, 0)  # the last stream id never rises


def test_goaway_from_the_peer() -> None:
    """Streams above the last stream of a GOAWAY are refused, so that callers can retry elsewhere; others continue."""
    side, peer_ = Side(is_client=True), peer(is_client=False)
    calls = [side.open(ended=True) for _ in range(3)]
    exchange(side, peer_)
    peer_.close_connection(last_stream_id=3)
    exchange(side, peer_)
    assert [call.reset for call in calls] == [None, None, ErrorCode.REFUSED_STREAM]
    assert side.http2.is_leaving and side.num_farewells == 1
    assert list(side.http2.streams) == [1, 3] and side.http2.failed is None
    side.feed(headers(1, REPLY, ended=True))
    assert calls[0].ended


def test_a_reset_reaches_the_other_side() -> None:
    """A reset reaches the peer with its code; data sent on the stream afterwards is dropped."""
    side, peer_ = Side(is_client=True), peer(is_client=False)
    call = side.open()
    call.stream.send_data(bytes(100_000))
    assert call.stream.is_waiting
    exchange(side, peer_)
    call.stream.reset(ErrorCode.CANCEL)
    call.stream.send_data(b"late", True)
    call.stream.send_trailers(CachedHeaders(TRAILERS))
    call.stream.credit(1 << 20)
    resets = told(exchange(side, peer_), StreamReset)
    assert [event.error_code for event in resets] == [ErrorCodes.CANCEL]
    assert not side.http2.streams and not side.http2.waiting and side.num_closed == 1


@pytest.mark.parametrize("end", ["headers", "data", "trailers"])
def test_a_reply_before_the_end_of_the_request(end: str) -> None:
    """After an early reply the rest of the request is not sent, the stream closes, and the reply is complete (section
    8.1)."""
    side, peer_ = Side(is_client=True), peer(is_client=False)
    call = side.open()
    call.stream.send_data(bytes(100_000))
    exchange(side, peer_)
    peer_.send_headers(1, REPLY, end_stream=end == "headers")
    if end == "data":
        peer_.send_data(1, b"early", end_stream=True)
    elif end == "trailers":
        peer_.send_headers(1, TRAILERS, end_stream=True)
    resets = told(exchange(side, peer_), StreamReset)
    assert [event.error_code for event in resets] == [ErrorCodes.NO_ERROR]
    assert call.ended and call.reset is None and not side.http2.streams and side.num_closed == 1
    call.stream.send_data(b"late", True)
    assert side.take() == b""


def test_the_peers_stream_limit_is_kept() -> None:
    """The client opens at most as many streams as SETTINGS allows; a higher limit notifies the connection's owner."""
    side, peer_ = Side(is_client=True), peer(is_client=False)
    peer_.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
    exchange(side, peer_)
    side.open(ended=True)
    assert side.http2.peer_max_streams == 1 and side.num_settings > 0
    before = side.num_settings
    peer_.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 2})
    exchange(side, peer_)
    assert side.http2.peer_max_streams == 2 and side.num_settings == before + 1


def test_the_numbers_of_streams_end() -> None:
    """Section 5.1.1: stream ids are never reused; when they run out, the connection accepts no new streams."""
    side = client()
    side.http2.next_id = 2**31 - 3
    assert not side.http2.is_leaving
    side.open()
    assert side.http2.is_leaving
