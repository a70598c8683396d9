"""A backend that holds requests is notified of cancellations."""

import os
from collections.abc import Iterator

import pytest

from engines.ipc import protocol
from engines.ipc.arena import Arena, Mapping, open_shared_file
from engines.ipc.arrays import ArrayStore
from engines.ipc.host_connection import HostConnection
from engines.ipc.protocol import encode


@pytest.fixture
def ends() -> Iterator[tuple[HostConnection, int]]:
    """An instance's connection, and the host's end of the pipe to it."""
    (incoming, host), (_, outgoing) = os.pipe(), os.pipe()
    arrays = ArrayStore(Arena(open_shared_file(), 1 << 20), Mapping(open_shared_file()))
    yield HostConnection(incoming, outgoing, arrays), host
    for descriptor in (incoming, host, outgoing):
        os.close(descriptor)


def send(host: int, kind: int, *rest: object) -> None:
    os.write(host, encode((kind, (), *rest)))


def test_a_thread_that_waits_for_work_reports_a_cancellation(ends: tuple[HostConnection, int]) -> None:
    """The callback runs once, on the message for its request only."""
    connection, host = ends
    calls: list[int] = []
    for request in (1, 2):
        connection.when_cancelled(request, lambda request=request: calls.append(request))
    send(host, protocol.CANCEL, 2)
    send(host, protocol.CANCEL, 2)
    send(host, protocol.STOP)
    assert connection.next_work()[0] == protocol.STOP
    assert calls == [2]


def test_an_earlier_cancellation_is_reported_at_once(ends: tuple[HostConnection, int]) -> None:
    """A late registration misses nothing."""
    connection, host = ends
    send(host, protocol.CANCEL, 1)
    assert connection.is_cancelled(1)
    calls: list[int] = []
    connection.when_cancelled(1, lambda: calls.append(1))
    assert calls == [1]


def test_an_ended_request_is_not_reported(ends: tuple[HostConnection, int]) -> None:
    """A cancellation after the last response has no effect."""
    connection, host = ends
    connection.when_cancelled(1, lambda: pytest.fail("nobody listens any more"))
    connection.forget(1)
    send(host, protocol.CANCEL, 1)
    send(host, protocol.STOP)
    connection.next_work()
