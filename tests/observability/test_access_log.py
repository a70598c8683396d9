"""The access log has one line per request."""

import asyncio
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from gateway.observability.access_log import AccessLog, AccessLogEntry, LogFile

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


def test_names_of_opentelemetry() -> None:
    """The format `otel` has all facts of a request by the names of OpenTelemetry and ECS; what it does not have is left
    out."""
    chat = replace(
        ENTRY,
        target="/v1/chat/completions?key=***",
        model="m",
        engine_model="llama",
        protocol="openai",
        operation="chat",
        tenant="acme",
        key="k1",
        session="0f",
        request_bytes=10,
        response_bytes=200,
        prompt_tokens=7,
        completion_tokens=5,
        cached_tokens=3,
        finish_reason="stop",
        first_seconds=0.005,
        waited=0.5,
        attempts=2,
        trace_id="a" * 32,
        span_id="b" * 16,
    )
    path = "/inference.GRPCInferenceService/ModelInfer"
    call = replace(ENTRY, protocol="grpc", target=path, code=14, status=503, reason="upstream_reset")
    one, other = map(orjson.loads, written("otel", chat, call).splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", one.pop("@timestamp"))
    assert one == {
        "client.address": "10.0.0.9",
        "http.request.method": "POST",
        "url.path": "/v1/chat/completions",
        "url.query": "key=***",
        "http.response.status_code": 200,
        "http.request.header.x-request-id": "abc",
        "http.request.body.size": 10,
        "http.response.body.size": 200,
        "pointsman.protocol": "openai",
        "pointsman.operation": "chat",
        "pointsman.model": "m",
        "pointsman.engine.model": "llama",
        "pointsman.route": "all",
        "pointsman.engine": "triton",
        "pointsman.arm": "candidate",
        "pointsman.endpoint": "http://e0:8000",
        "pointsman.tenant": "acme",
        "user.id": "k1",
        "pointsman.session.hash": "0f",
        "pointsman.attempts": 2,
        "pointsman.wait.duration": 0.5,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "llama",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 0.005,
        "event.duration": 12_340_000,
        "event.outcome": "success",
        "trace_id": "a" * 32,
        "span_id": "b" * 16,
    }
    assert (other["rpc.method"], other["rpc.response.status_code"], other["error.type"], other["event.outcome"]) == (
        "inference.GRPCInferenceService/ModelInfer",
        "UNAVAILABLE",
        "upstream_reset",
        "failure",
    )
    assert "url.path" not in other


def test_a_rotated_file_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines go to the end of a file; once it is renamed, to a new one. Lines that cannot be written are reported."""
    path = tmp_path / "access.log"
    path.write_text("before\n")

    async def act() -> None:
        log = AccessLog("text", file=LogFile(path))
        log.write(ENTRY)
        log.flush()
        path.rename(tmp_path / "access.log.1")
        log.write(ENTRY)
        log.flush()
        path.unlink()
        path.mkdir()
        log.write(ENTRY)
        log.close()

    asyncio.run(act())
    assert (tmp_path / "access.log.1").read_text().count("\n") == 2
    assert (tmp_path / "access.log.1").read_text().startswith("before\n")
    assert "lines of the access log are lost" in caplog.text


def test_a_new_file_has_its_lines(tmp_path: Path) -> None:
    """A file that is not there is made, and not readable by everybody."""
    path = tmp_path / "access.log"
    file = LogFile(path)
    file.check()
    file.append(b"one\n")
    file.close()
    assert path.read_text() == "one\n"
    assert path.stat().st_mode & 0o007 == 0
