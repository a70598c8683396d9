"""The client of the handler that asks the engine in a translation."""

from __future__ import annotations

from typing import Protocol

from gateway.dataplane.context.interfaces import Client
from gateway.dataplane.protocol_bridge.rest_client import ReplySink, RestClient


class BreakableSink(ReplySink, Protocol):
    """A sink that wants to know why a reply breaks off."""

    def reply_broken_off(self, event: bytes) -> None:
        """The reply ends in its middle; `event` tells the client why."""
        ...


class InnerClient(RestClient):
    """Reads a reply back, for a sink that translates it."""

    def __init__(self, client: Client, sink: BreakableSink) -> None:
        super().__init__(client.plane, sink, client.peer)
        self._breakable = sink

    def break_off(self, event: bytes = b"") -> None:
        self._breakable.reply_broken_off(event)


def inner_client(client: Client, sink: BreakableSink) -> InnerClient:
    """The client of a handler that works for this client's request."""
    made = InnerClient(client, sink)
    made.forwarded_for_line = client.forwarded_for_line
    made.forwarded_proto_line = client.forwarded_proto_line
    made.is_paused = client.is_paused
    return made
