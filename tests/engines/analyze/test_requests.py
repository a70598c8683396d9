"""The requests of an analysis, the configurations that it loads, and the load generator against a test server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from engines.analyze import config_override, inputs
from engines.analyze.inputs import RequestBody
from engines.analyze.load import ConcurrentLoad, Window, check_url, request_bytes
from engines.analyze.models import AnalyzeError, Candidate
from gateway.protocol.protobuf import message

CONFIG: dict[str, Any] = {
    "name": "m",
    "max_batch_size": 8,
    "input": [
        {"name": "a", "data_type": "TYPE_INT8", "dims": ["2", "-1"]},
        {"name": "t", "data_type": "TYPE_STRING", "dims": [1]},
        {"name": "o", "data_type": "TYPE_FP32", "dims": [1], "optional": True},
    ],
}


def tensors(body: RequestBody) -> dict[str, tuple[str, list[int], bytes]]:
    """The inputs of a request, read as a server reads them."""
    head, rest = json.loads(body.data[: body.json_bytes]), body.data[body.json_bytes :]
    matches = {}
    for report in head["inputs"]:
        size = report["parameters"]["binary_data_size"]
        matches[report["name"]] = (report["datatype"], report["shape"], rest[:size])
        rest = rest[size:]
    assert rest == b""
    return matches


def test_generated_requests() -> None:
    """Generated inputs have the batch first, the given dims and valid values, and leave optional inputs out. The
    requests of a set differ from each other, and each run generates the same set."""
    bodies = inputs.generate(CONFIG, 3, {"a": (2, 5)})
    assert bodies == inputs.generate(CONFIG, 3, {"a": (2, 5)})
    assert len({body.data for body in bodies}) == inputs.NUM_GENERATED
    matches = tensors(bodies[0])
    assert list(matches) == ["a", "t"]
    datatype, shape, data = matches["a"]
    assert (datatype, shape, len(data)) == ("INT8", [3, 2, 5], 30)
    assert max(data) < 100
    assert matches["t"][:2] == ("BYTES", [3, 1])
    assert inputs.open_axes(CONFIG, {}) == ["a"]
    assert inputs.open_axes(CONFIG, {"a": (2, 5)}) == []


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ({"b": (1,)}, "--shape names 'b', which is no input of the model; its inputs: a, t"),
        ({"a": (3, 5)}, "--shape a:3,5 does not fit the input, whose dims are 2,-1"),
        ({"a": (2,)}, "--shape a:2 does not fit the input, whose dims are 2,-1"),
    ],
)
def test_wrong_shapes(shapes: dict[str, tuple[int, ...]], error: str) -> None:
    """The error names the model's inputs."""
    with pytest.raises(AnalyzeError) as raised:
        inputs.generate(CONFIG, 1, shapes)
    assert str(raised.value) == error


def test_a_file_of_requests(tmp_path: Path) -> None:
    """A file holds one or more V2 requests as JSON; their tensors are sent in binary."""
    path = tmp_path / "requests.json"
    one = {"inputs": [{"name": "a", "datatype": "INT8", "shape": [1, 2], "data": [[1, 2]]}]}
    path.write_text(json.dumps([one, one]))
    bodies = inputs.read(path)
    assert [tensors(body) for body in bodies] == [{"a": ("INT8", [1, 2], b"\x01\x02")}] * 2
    path.write_text(json.dumps(one))
    assert inputs.read(path) == bodies[:1]


FORM = 'a request is {"inputs": [{"name": ..., "datatype": ..., "shape": [...], "data": [...]}]}'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "is not JSON"),
        ("[]", "has no request"),
        ("{}", f", request 0: 'inputs' is missing; {FORM}"),
        (
            '{"inputs": [{"name": "a", "datatype": "INT8", "shape": [3], "data": [1]}]}',
            f", request 0: input 'a' has 1 elements, its shape 3; {FORM}",
        ),
        (
            '{"inputs": [{"name": "a", "datatype": "INT8", "shape": [1], "data": [300]}]}',
            f", request 0: input 'a': INT8 requires -128 <= number <= 127; {FORM}",
        ),
        (
            '{"inputs": [{"name": "a", "datatype": "INT9", "shape": [1], "data": [3]}]}',
            ", request 0: its datatype is 'INT9', and none of BOOL",
        ),
    ],
)
def test_wrong_files(tmp_path: Path, text: str, error: str) -> None:
    """The error names the file, the request and what a request looks like."""
    path = tmp_path / "requests.json"
    path.write_text(text)
    with pytest.raises(AnalyzeError) as raised:
        inputs.read(path)
    assert str(path) in str(raised.value)
    assert error in str(raised.value)


def test_a_candidate_in_a_configuration() -> None:
    """A configuration takes the candidate's settings and keeps everything else. Parsing it gives the same candidate."""
    config = {
        **CONFIG,
        "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1}],
        "dynamic_batching": {"preserve_ordering": True, "max_queue_delay_microseconds": "7"},
    }
    assert config_override.candidate_of(config) == Candidate(1, 8, 7)
    candidate = Candidate(4, 32, 100, (8, 16))
    result = config_override.with_candidate(config, candidate)
    assert config_override.candidate_of(result) == candidate
    assert result["instance_group"] == [{"name": "m_0", "kind": "KIND_CPU", "count": 4}]
    assert result["dynamic_batching"]["preserve_ordering"] is True
    assert result["input"] == CONFIG["input"]
    assert "dynamic_batching" not in config_override.with_candidate(config, Candidate(1, 8))
    read = text_format.Parse(config_override.config_pbtxt(result), message("inference.ModelConfig")())
    assert (read.max_batch_size, read.instance_group[0].count) == (32, 4)
    assert list(read.dynamic_batching.preferred_batch_size) == [8, 16]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"sequence_batching": {}}, "is a sequence model"),
        ({"model_transaction_policy": {"decoupled": True}}, "is decoupled"),
    ],
)
def test_models_that_cannot_be_swept(more: dict[str, Any], error: str) -> None:
    """The error has the reason."""
    with pytest.raises(AnalyzeError, match=f"m {error}"):
        config_override.check_kind(CONFIG | more)


@pytest.mark.parametrize("url", ["localhost:8000", "https://x:1", "http://x:1/v2", "grpc://x:1"])
def test_urls_that_are_none(url: str) -> None:
    """The error has an example URL."""
    with pytest.raises(AnalyzeError, match="write http://HOST:PORT"):
        check_url(url)


async def load_on(reply: bytes, concurrency: int, *, closes: bool = False) -> tuple[Window, int, set[bytes]]:
    """The window of a load on a server that sends this reply, the highest concurrency, and the requests received."""
    under_way, most, seen = 0, 0, set()
    windows: asyncio.Queue[None] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        while line := await reader.readline():
            assert line == b"POST /v2/models/m/infer HTTP/1.1\r\n"
            head = await reader.readuntil(b"\r\n\r\n")
            seen.add(await reader.readexactly(int(head.split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])))
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            writer.write(reply)
            windows.put_nowait(None)
            if closes:
                break
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    requests = [request_bytes(url, "/v2/models/m/infer", RequestBody(data, 2)) for data in (b"{}one", b"{}two")]
    async with ConcurrentLoad(url, requests, concurrency) as load:
        for _ in range(2 * concurrency):
            await windows.get()
        window = await load.window(0.1)
    server.close()
    return window, most, seen


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize("reply", [OK, CHUNKED], ids=["length", "chunks"])
def test_load(reply: bytes) -> None:
    """The requested number of requests is in flight, sent in turn, and replies are counted."""
    window, most, seen = asyncio.run(load_on(reply, 4))
    assert window.latencies_ms
    assert window.errors == ()
    assert 1 < most <= 4
    assert seen == {b"{}one", b"{}two"}


REFUSALS = [
    (b'HTTP/1.1 400 Bad Request\r\ncontent-length: 15\r\n\r\n{"error": "no"}', "400 no"),
    (b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nbusy", "503 busy"),
    (b"SMTP\r\n\r\n", "the reply is no HTTP"),
]


@pytest.mark.parametrize(("reply", "error"), REFUSALS, ids=["triton", "text", "no HTTP"])
def test_errors_are_reported(reply: bytes, error: str) -> None:
    """A refusal is an error with the server's text, without a latency."""
    window, _, _ = asyncio.run(load_on(reply, 2))
    assert window.latencies_ms == ()
    assert window.errors
    assert all(report.startswith(error) for report in window.errors)


def test_a_connection_that_breaks_is_made_again() -> None:
    """A server that closes after each reply gets new connections, and the errors are reported."""
    window, _, seen = asyncio.run(load_on(OK, 2, closes=True))
    assert window.latencies_ms
    assert all(report.startswith("the connection broke") for report in window.errors)
    assert seen == {b"{}one", b"{}two"}
