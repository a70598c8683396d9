"""The table of a stream's peer: every event in every state is either a step or an error of the stream."""

from __future__ import annotations

import pytest

from gateway.wire.http2.frames import rst_stream
from gateway.wire.http2.peer_state import FAULTS, PeerEvent, PeerState
from tests.wire.http2.sides import REPLY, ReceivedStream, Side, client, data, headers

FIELDS = [(b"a", b"b")]
# Each state with all that may come in it: the flags of END_STREAM, and for the first fields interim ones.
FRAMES = {
    PeerState.SILENT: {
        "interim": headers(1, [(b":status", b"103")]),
        "interim, end": headers(1, [(b":status", b"103")], ended=True),
        "fields": headers(1, REPLY),
        "fields, end": headers(1, REPLY, ended=True),
    },
    PeerState.SENDING: {"fields": headers(1, FIELDS), "fields, end": headers(1, FIELDS, ended=True)},
    PeerState.ENDED: {"fields": headers(1, FIELDS), "fields, end": headers(1, FIELDS, ended=True)},
}
for frames in FRAMES.values():
    frames |= {"data": data(1, b"x"), "data, end": data(1, b"x", ended=True)}
STEPS = {
    (PeerState.SILENT, "interim"): PeerState.SILENT,
    (PeerState.SILENT, "fields"): PeerState.SENDING,
    (PeerState.SILENT, "fields, end"): PeerState.ENDED,
    (PeerState.SENDING, "data"): PeerState.SENDING,
    (PeerState.SENDING, "data, end"): PeerState.ENDED,
    (PeerState.SENDING, "fields, end"): PeerState.ENDED,
}
EVENTS = {
    "interim, end": PeerEvent.INTERIM_END,
    "fields": PeerEvent.FIELDS,
    "fields, end": PeerEvent.FIELDS_END,
    "data": PeerEvent.DATA,
    "data, end": PeerEvent.DATA,
}
ALL = [(state, sent) for state, frames in FRAMES.items() for sent in frames]


def stream_in(state: PeerState) -> tuple[Side, ReceivedStream]:
    """A client whose engine's half of stream 1 is in this state; its own half is open."""
    side = client()
    received = side.open()
    if state is not PeerState.SILENT:
        side.feed(headers(1, REPLY))
    received.stream.peer_state = state  # an ended reply would end the client's half as well
    side.take()
    return side, received


@pytest.mark.parametrize(("state", "sent"), ALL)
def test_every_frame_in_every_state(state: PeerState, sent: str) -> None:
    """A frame is a step of the diagram, or else a fault of the table, which resets the stream and no more."""
    side, received = stream_in(state)
    side.feed(FRAMES[state][sent])
    assert side.http2.failed is None
    if (state, sent) in STEPS:
        assert received.stream.peer_state is STEPS[state, sent] and received.reset is None
    else:
        code, why = FAULTS[state, EVENTS[sent]]
        assert (received.reset, received.why) == (code, why)
        assert side.take() == rst_stream(1, code)


def test_the_table_has_nothing_else() -> None:
    """No entry of the table is one that a frame cannot reach."""
    assert set(FAULTS) == {(state, EVENTS[sent]) for state, sent in ALL if (state, sent) not in STEPS}
