"""Captures on their way from a worker to the shadow process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.dataplane.context.capture import CAPTURED, BoundedCopy, CapturedFacts, CaptureReader, Tap, encode

FACTS = CapturedFacts("r", "old", None, "id-é", "POST / HTTP/1.1\r\n\r\n", False, "", 200, 0.5, 0.25)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_captures_survive_any_cut(size: int) -> None:
    """However the socket cuts the bytes, the same captures come out, whole and in order."""
    sent = b"".join(encode(FACTS, (b"ask", b"ed"), (b"answered",)) * 2 + encode(FACTS, (), (b"\x00" * 50,)))
    reader = CaptureReader()
    found = [each for start in range(0, len(sent), size) for each in reader.feed(sent[start : start + size])]
    assert [(each.facts, each.request, each.answer) for each in found] == [
        (FACTS, b"asked", b"answered"),
        (FACTS, b"asked", b"answered"),
        (FACTS, b"", b"\x00" * 50),
    ]


def test_a_copy_that_is_too_long_is_none() -> None:
    """A copy up to the limit keeps all of its bytes; a longer one keeps none and counts only the size."""
    copy = BoundedCopy(6)
    copy.add(b"abc")
    copy.add(b"def")
    assert (copy.is_whole, copy.pieces) == (True, [b"abc", b"def"])
    copy.add(b"g")
    copy.add(b"h")
    assert (copy.is_whole, copy.pieces, copy.size) == (False, [], 8)


def test_a_tap_never_waits(tmp_path: Path) -> None:
    """Captures are dropped and counted while no listener is connected or the listener does not read. Both the captures
    buffered for a slow listener and those that it has not acknowledged are bounded. The tap connects when a listener
    appears, and reconnects after the listener is gone."""
    path = str(tmp_path / "captures")
    body = b"x" * 1_000_000

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        tap = Tap(loop, path)
        tap.open()
        assert not tap.is_open_for("r", 1)
        received: list[bytes] = []
        writers: list[asyncio.StreamWriter] = []
        gate = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await gate.wait()
            captures = CaptureReader()
            while data := await reader.read(1 << 20):
                received.extend(each.request for each in captures.feed(data))
            writer.close()

        server = await asyncio.start_unix_server(listen, path)
        while tap._transport is None:
            await asyncio.sleep(0.01)
        for _ in range(100):
            tap.give(FACTS, (body,), (b"",), 1000)
        given = tap.counts["r", CAPTURED]
        assert 1 < given < 10
        assert tap.counts["r", "busy"] == 100 - given
        gate.set()
        while len(received) < given:
            await asyncio.sleep(0.01)
        assert set(received) == {body}
        assert tap.is_open_for("r", given + 1)
        assert not tap.is_open_for("r", given)
        assert tap.is_open_for("other", 1)
        assert tap.counts["r", "max_in_flight"] == 1
        writers[0].write(b"r\nr")  # acknowledges one capture, and half a word of another
        while not tap.is_open_for("r", given):
            await asyncio.sleep(0.01)
        assert not tap.is_open_for("r", given - 1)
        before = tap._transport
        before.close()  # as if the process had died
        while tap._transport in (before, None):
            await asyncio.sleep(0.01)
        assert tap.is_open_for("r", 1)
        tap.close()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
