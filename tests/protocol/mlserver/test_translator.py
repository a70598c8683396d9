"""The translation of V2 requests for MLServer."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import GatewayError
from gateway.protocol.mlserver.translator import mlserver_translator
from gateway.protocol.operations import Operation
from gateway.protocol.translator import V2Request
from tests.protocol.mlserver.translations import generate_stream


def test_mlservers_own_generate_requests() -> None:
    """A generate request in MLServer's own form passes unchanged, and so do its events."""
    body = b'{ "inputs": [{"name": "x", "shape": [1], "datatype": "BYTES", "data": ["a"]}] }'
    made = generate_stream(body, model="m")
    assert made.request().body == body
    assert made.feed(b'data: {"model_name":"m","outputs":[]}\n\n') == b'data: {"model_name":"m","outputs":[]}\n\n'


@given(st.lists(st.integers(0, 400)))
def test_a_stream_cut_anywhere(cuts: list[int]) -> None:
    """The events do not depend on how MLServer's stream is split into chunks."""
    data = b"".join(b"data: " + event(word) + b"\n\n" for word in ("a", "ö", "c"))
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = generate_stream(b'{"text_input":"x"}', model="m")
    made.request()
    written = b"".join(made.feed(data[start:stop]) for start, stop in pairwise(at)) + made.end()
    assert [report["text_output"] for report in events_of(written)] == ["a", "ö", "c"]


def test_a_stream_that_ends_in_an_event() -> None:
    """A stream that ends within an event is an error."""
    made = generate_stream(b'{"text_input":"x"}', model="m")
    made.request()
    assert made.feed(b'data: {"outputs"') == b""
    with pytest.raises(GatewayError, match="in the middle of an event"):
        made.end()


@pytest.mark.parametrize(
    "operation, path",
    [
        (Operation.INFER, "/v2/models/m/versions/1/infer"),
        (Operation.GENERATE, "/v2/models/m/versions/1/generate"),
        (Operation.GENERATE_STREAM, "/v2/models/m/versions/1/generate_stream"),
    ],
)
def test_paths(operation: Operation, path: str) -> None:
    """Each operation is sent to MLServer's path for it."""
    made = mlserver_translator(V2Request(operation, b'{"text_input":"x"}', model="m", version="1"))
    assert (made.request().path, made.streams) == (path, path.endswith("stream"))


def event(text: str) -> bytes:
    return json.dumps({"outputs": [{"name": "t", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}).encode()


def events_of(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]
