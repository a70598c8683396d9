"""The table of a stream's peer: every event in every state is either a step or an error of the stream."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from gateway.wire.http2.frames import rst_stream
from gateway.wire.http2.peer_state import FAULTS, PeerEvent, PeerState
from tests.wire.http2.sides import REPLY, Heard, Side, client, data, headers

INTERIM = [(b":status", b"103")]
FIELDS = [(b"a", b"b")]
# The steps of the module's diagram.
STEPS = {
    (PeerState.SILENT, PeerEvent.INTERIM): PeerState.SILENT,
    (PeerState.SILENT, PeerEvent.FIELDS): PeerState.SENDING,
    (PeerState.SILENT, PeerEvent.FIELDS_END): PeerState.ENDED,
    (PeerState.SENDING, PeerEvent.DATA): PeerState.SENDING,
    (PeerState.SENDING, PeerEvent.DATA_END): PeerState.ENDED,
    (PeerState.SENDING, PeerEvent.FIELDS_END): PeerState.ENDED,
}
# Fields after the first ones are trailers: none of them is an interim reply.
EVENTS = [
    (state, event)
    for state, event in product(PeerState, PeerEvent)
    if state is PeerState.SILENT or event not in (PeerEvent.INTERIM, PeerEvent.INTERIM_END)
]


def sent(state: PeerState, event: PeerEvent) -> bytes:
    """An engine's frame."""
    fields = REPLY if state is PeerState.SILENT else FIELDS
    return {
        PeerEvent.INTERIM: headers(1, INTERIM),
        PeerEvent.INTERIM_END: headers(1, INTERIM, ended=True),
        PeerEvent.FIELDS: headers(1, fields),
        PeerEvent.FIELDS_END: headers(1, fields, ended=True),
        PeerEvent.DATA: data(1, b"x"),
        PeerEvent.DATA_END: data(1, b"x", ended=True),
    }[event]


def stream_in(state: PeerState) -> tuple[Side, Heard]:
    """A client whose engine's half of stream 1 is in this state; its own half is open."""
    side = client()
    heard = side.open()
    if state is not PeerState.SILENT:
        side.feed(headers(1, REPLY))
    heard.stream.peer_state = state  # an ended reply would end the client's half as well
    side.take()
    return side, heard


def test_the_table_is_complete() -> None:
    """Each event is either a step or a fault, in each state in which it can occur."""
    assert Counter([*STEPS, *FAULTS]) == Counter(EVENTS)


@pytest.mark.parametrize(("state", "event"), STEPS, ids=lambda each: each.name)
def test_steps(state: PeerState, event: PeerEvent) -> None:
    """A frame that the diagram allows leads to the state that it names."""
    side, heard = stream_in(state)
    side.feed(sent(state, event))
    assert heard.stream.peer_state is STEPS[state, event]
    assert side.http2.failed is None and heard.reset is None


@pytest.mark.parametrize(("state", "event"), FAULTS, ids=lambda each: each.name)
def test_faults(state: PeerState, event: PeerEvent) -> None:
    """Every other frame resets the stream with the code and the text of the table; the connection stays."""
    side, heard = stream_in(state)
    side.feed(sent(state, event))
    code, why = FAULTS[state, event]
    assert (heard.reset, heard.why) == (code, why)
    assert side.take() == rst_stream(1, code) and side.http2.failed is None
