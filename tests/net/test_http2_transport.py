"""When a connection writes the frames that a read on another connection has produced for it."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from gateway.net.http2_transport import Http2Transport
from gateway.wire.http2 import frames
from gateway.wire.http2.state import Http2Limits

SETTINGS = frames.settings({})


@pytest.fixture(autouse=True)
def a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst interval long enough for any machine."""
    monkeypatch.setattr("gateway.net.http2_transport._BURST_SECONDS", 0.05)


class Transport(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.is_closed
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed


class Reader(Http2Transport):
    """Sends to other connections when the peer's settings change."""

    def settings_changed(self) -> None:
        self.brings()

    brings: Callable[[], None]


def connected(kind: type[Http2Transport]) -> tuple[Http2Transport, Transport]:
    carrier, transport = kind(Http2Limits(), is_client=True), Transport()
    carrier.connection_made(transport)
    return carrier, transport


async def written(*reads: bytes, closed: bool = False) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The bytes that two other connections have written at the end of some reads, and one turn of the loop later. Each
    SETTINGS in the reads adds one frame to both; `closed`: a third connection, before these, is closed."""
    reader, _ = connected(Reader)
    shut, its = connected(Http2Transport)
    pairs = [connected(Http2Transport) for _ in range(2)]
    await asyncio.sleep(0.1)  # the opening is written, and the burst is over
    its.is_closed = closed
    for _, transport in pairs:
        transport.writes.clear()

    def bring() -> None:
        for carrier in [shut, *(carrier for carrier, _ in pairs)]:
            carrier.http2.emit(b"frame")

    assert isinstance(reader, Reader)
    reader.brings = bring
    for read in reads:
        reader.data_received(read)
    at_once = [list(transport.writes) for _, transport in pairs]
    await asyncio.sleep(0)
    return at_once, [transport.writes for _, transport in pairs]


def test_a_read_that_stands_alone() -> None:
    """The output of a single read is written before the read ends."""
    assert uvloop.run(written(SETTINGS))[0] == [[b"frame"]] * 2


@pytest.mark.parametrize("read", [SETTINGS * 100, SETTINGS + frames.frame(0xEE, 0, 0, bytes(1000))])
def test_a_long_read(read: bytes) -> None:
    """The output of a long read is written when it ends, once for each connection."""
    assert uvloop.run(written(read))[0] == [[b"frame" * read.count(SETTINGS)]] * 2


def test_reads_in_a_burst() -> None:
    """The output of the first read is written at once, that of the reads right after it once at the turn's end."""
    first, later = [b"frame"], [b"frame", b"frame" * 5]
    assert uvloop.run(written(*[SETTINGS] * 6)) == ([first] * 2, [later] * 2)


def test_others_that_are_closed() -> None:
    """A closing connection is skipped; those after it are written."""
    assert uvloop.run(written(SETTINGS * 100, closed=True))[1] == [[b"frame" * 100]] * 2


def test_messages_that_are_relayed() -> None:
    """In a burst, relayed messages are written when the read ends, together with the output that waits for the turn's
    end."""

    async def scene() -> None:
        reader, _ = connected(Reader)
        assert isinstance(reader, Reader)
        (one, its), (other, others) = connected(Http2Transport), connected(Http2Transport)
        await asyncio.sleep(0.1)
        reader.brings = lambda: None
        reader.data_received(SETTINGS)  # a burst begins
        its.writes.clear()
        others.writes.clear()

        def bring() -> None:
            one.http2.emit(b"reply")
            other.http2.out.append(b"message")
            other.has_relayed()

        reader.brings = bring
        reader.data_received(SETTINGS)
        assert (its.writes, others.writes) == ([], [b"message"])
        reader.brings = lambda: one.http2.emit(b"reply")
        one.http2.out.append(b"message")
        one.has_relayed()
        reader.data_received(SETTINGS)
        assert its.writes == [b"replymessagereply"]
        await asyncio.sleep(0)
        assert b"".join(its.writes) == b"replymessagereply" and others.writes == [b"message"]

    uvloop.run(scene())
