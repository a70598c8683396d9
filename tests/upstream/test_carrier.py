"""When a connection writes what a read on another one has brought for it."""

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from gateway.upstream.carrier import Carrier
from gateway.wire.http2 import frames
from gateway.wire.http2.connection import Http2Limits

SETTINGS = frames.settings({})


class Transport(asyncio.Transport):
    """Writes down what it is given."""

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


class Reader(Carrier):
    """Does something for other connections when it hears of the peer's settings."""

    def settings_changed(self) -> None:
        self.brings()

    brings: Callable[[], None]


def connected(kind: type[Carrier]) -> tuple[Carrier, Transport]:
    carrier, transport = kind(Http2Limits(), is_client=True), Transport()
    carrier.connection_made(transport)
    return carrier, transport


async def written(read: bytes, *, closed: bool = False) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """What two others have written, at the end of a read and a turn of the loop later, where each SETTINGS in it brings
    one frame to both; `closed`: a third one, before these, is closed."""
    reader, _ = connected(Reader)
    shut, its = connected(Carrier)
    pairs = [connected(Carrier) for _ in range(2)]
    await asyncio.sleep(0)
    its.is_closed = closed
    for _, transport in pairs:
        transport.writes.clear()

    def bring() -> None:
        for carrier in [shut, *(carrier for carrier, _ in pairs)]:
            carrier.http2.emit(b"frame")

    assert isinstance(reader, Reader)
    reader.brings = bring
    reader.data_received(read)
    at_once = [list(transport.writes) for _, transport in pairs]
    await asyncio.sleep(0)
    return at_once, [transport.writes for _, transport in pairs]


def test_a_read_that_stands_alone() -> None:
    """What it brings for others is on its way when it is done with."""
    assert uvloop.run(written(SETTINGS))[0] == [[b"frame"]] * 2


@pytest.mark.parametrize("read", [SETTINGS * 100, SETTINGS + frames.frame(0xEE, 0, 0, bytes(1000))])
def test_a_long_read(read: bytes) -> None:
    """What it brings is written at the turn's end, once for each of the others."""
    num_frames = read.count(SETTINGS)
    assert uvloop.run(written(read)) == ([[], []], [[b"frame" * num_frames]] * 2)


def test_others_that_are_closed() -> None:
    """A connection that is closing is passed over; those after it are written."""
    assert uvloop.run(written(SETTINGS * 100, closed=True))[1] == [[b"frame" * 100]] * 2
