"""The access log has one line per request."""

import asyncio
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import orjson
import pytest

from gateway.observability.access_log import AccessLog, AccessLogEntry

ENTRY = AccessLogEntry(
    peer="10.0.0.9",
    method="POST",
    target="/v2/models/m/infer",
    route="all",
    arm="candidate",
    engine="triton",
    endpoint="http://e0:8000",
    status=200,
    reason="",
    seconds=0.01234,
    request_id="abc",
)


def play(scene: Callable[[list[float]], Iterator[None]]) -> None:
    """Run a scene in an event loop whose clock is the single number in the list. The loop runs once each time the scene
    yields."""

    async def act() -> None:
        loop, clock = asyncio.get_running_loop(), [1000.0]
        loop.time = lambda: clock[0]  # type: ignore[method-assign]
        for _ in scene(clock):
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(act())


def written(log_format: str, *entries: AccessLogEntry) -> str:
    stream = io.StringIO()

    async def act() -> None:
        log = AccessLog(log_format, stream)
        for entry in entries:
            log.write(entry)
        log.flush()

    asyncio.run(act())
    return stream.getvalue()


@pytest.mark.parametrize(
    "entry, line",
    [
        (
            ENTRY,
            '10.0.0.9 "POST /v2/models/m/infer" 200 12.3ms all candidate triton http://e0:8000 abc',
        ),
        (
            replace(ENTRY, fallback="down"),
            '10.0.0.9 "POST /v2/models/m/infer" 200 12.3ms all candidate triton http://e0:8000 fallback=down abc',
        ),
        (
            replace(ENTRY, hedge="won"),
            '10.0.0.9 "POST /v2/models/m/infer" 200 12.3ms all candidate triton http://e0:8000 hedge=won abc',
        ),
        (
            replace(ENTRY, arm="", status=504, reason="deadline", seconds=60.0),
            '10.0.0.9 "POST /v2/models/m/infer" 504 deadline 60000.0ms all triton http://e0:8000 abc',
        ),
        (
            replace(ENTRY, route="", arm="", engine="", endpoint="", status=404, reason="no_route", seconds=0.0),
            '10.0.0.9 "POST /v2/models/m/infer" 404 no_route 0.0ms - abc',
        ),
    ],
)
def test_text(entry: AccessLogEntry, line: str) -> None:
    """The text format has time, client, request, status, reason of failure, duration and endpoint."""
    when, _, rest = written("text", entry).partition(" ")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", when)
    assert rest == line + "\n"


def test_json() -> None:
    """The JSON format has one object per line with every field named, whatever text a client sends."""
    odd = replace(ENTRY, target='/v2/"\x85\u2028', request_id="é\t")
    lines = written("json", ENTRY, odd).split("\n")
    assert lines.pop() == ""
    one, other = map(orjson.loads, lines)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", one.pop("time"))
    assert one == {
        "peer": "10.0.0.9",
        "method": "POST",
        "target": "/v2/models/m/infer",
        "route": "all",
        "arm": "candidate",
        "engine": "triton",
        "endpoint": "http://e0:8000",
        "status": 200,
        "reason": "",
        "seconds": 0.01234,
        "request_id": "abc",
        "tenant": "",
        "key": "",
        "fallback": "",
        "hedge": "",
    }
    assert (other["target"], other["request_id"]) == ('/v2/"\x85\u2028', "é\t")


def test_lines_are_written_in_batches() -> None:
    """Lines are buffered for half a second, so that no request waits for the disk, and written at once."""
    stream = io.StringIO()

    def scene(clock: list[float]) -> Iterator[None]:
        log = AccessLog("text", stream)
        log.write(ENTRY)
        yield
        clock[0] += 0.4
        log.write(ENTRY)
        yield
        assert stream.getvalue() == ""
        clock[0] += 0.11
        yield
        assert stream.getvalue().count("\n") == 2
        log.write(ENTRY)
        clock[0] += 0.4
        yield
        assert stream.getvalue().count("\n") == 2  # the next batch starts its own half second

    play(scene)


def test_a_long_batch_is_written_at_once() -> None:
    """500 lines are written at once, even before half a second has passed."""
    stream = io.StringIO()

    def scene(clock: list[float]) -> Iterator[None]:
        log = AccessLog("text", stream)
        for _ in range(499):
            log.write(ENTRY)
        assert stream.getvalue() == ""
        log.write(ENTRY)
        assert stream.getvalue().count("\n") == 500
        clock[0] += 1.0
        yield
        assert stream.getvalue().count("\n") == 500

    play(scene)


def test_nothing_to_write() -> None:
    """Flushing an empty log writes nothing."""
    assert written("text") == written("json") == ""
