"""The reader of server-sent events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.errors import ErrorKind, GatewayError

STREAMS = {
    "Triton's": (b'data: {"a":1}\n\ndata: {"error":"x"}\n\n', [b'{"a":1}', b'{"error":"x"}']),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "no space, and only one is taken off": (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
    "several lines": (b"data: a\ndata\ndata: b\n\n", [b"a\n\nb"]),
    "other fields and comments": (b": hi\nid: 7\nevent: x\ndata: a\nretry: 1\n\n", [b"a"]),
    "events without data": (b"\n\n: ping\n\nevent: x\n\ndata: a\n\n", [b"a"]),
    "an event that is cut off": (b"data: a\n\ndata: b\n", [b"a"]),
    "a field that only begins alike": (b"database: x\ndata: a\n\n", [b"a"]),
    "empty data": (b"data:\n\n", [b""]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize("stream, events", STREAMS.values(), ids=STREAMS)
def test_a_stream_is_its_events_however_it_is_cut(stream: bytes, events: list[bytes]) -> None:
    """The events are the same for a stream read whole, byte by byte, or in two chunks split anywhere."""
    assert SseReader().feed(stream) == events
    for stop in range(len(stream)):
        reader = SseReader()
        assert reader.feed(stream[:stop]) + reader.feed(stream[stop:]) == events
    reader = SseReader()
    assert [event for at in range(len(stream)) for event in reader.feed(stream[at : at + 1])] == events


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b""))), st.data())
def test_what_is_written_is_read(events: list[bytes], data: st.DataObject) -> None:
    """Written events are read back from chunks of any length."""
    stream = b"".join(map(event_of, events))
    reader, came = SseReader(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        came += reader.feed(stream[:size])
        stream = stream[size:]
    assert came == events
    assert reader.num_waiting == 0


def test_what_waits_for_its_end_is_counted() -> None:
    """The reader counts the bytes of an incomplete event, which at the end of a stream mean that it was cut off."""
    reader = SseReader()
    reader.feed(b"data: abc\ndata: d")
    assert reader.num_waiting == 3 + len("data: d")


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 30, b"data: 1234567890\n" * 3, b": " + b"x" * 30])
def test_an_event_has_a_limit(stream: bytes) -> None:
    """An event longer than the limit is an upstream protocol error, in one line or several, in one chunk or many."""
    reader = SseReader(max_event_bytes=25)
    with pytest.raises(GatewayError, match="an event is longer than 25 bytes") as caught:
        for at in range(len(stream)):
            reader.feed(stream[at : at + 1])
    assert caught.value.kind is ErrorKind.UPSTREAM_PROTOCOL
    with pytest.raises(GatewayError):
        SseReader(max_event_bytes=25).feed(stream)


def test_the_limit_is_of_one_event() -> None:
    """The limit applies to each event, not to the whole stream."""
    assert len(SseReader(max_event_bytes=25).feed(b"data: 1234567890\n\n" * 100)) == 100
