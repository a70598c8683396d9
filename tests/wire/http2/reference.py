"""The `h2` library as the peer: it validates what the gateway sends."""

from collections.abc import Iterable
from typing import Any

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event

from gateway.wire.http2.fields import Field
from tests.wire.http2.sides import Side

TRAILERS: list[Field] = [(b"grpc-status", b"0"), (b"grpc-message", b"")]


def peer(*, is_client: bool) -> H2Connection:
    peer = H2Connection(H2Configuration(client_side=is_client, header_encoding=False))
    peer.initiate_connection()
    return peer


def told(events: Iterable[Event], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def exchange(side: Side, peer_: H2Connection) -> list[Event]:
    """Carry bytes both ways until neither side sends more; `h2` raises where the gateway breaks a rule."""
    events: list[Event] = []
    while True:
        theirs = bytes(peer_.data_to_send())
        if theirs:
            side.feed(theirs)
        ours = side.take()
        if ours:
            events += peer_.receive_data(ours)
        if not theirs and not ours:
            return events
