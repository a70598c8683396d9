"""V2's generate and generate_stream translated for TorchServe."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.torchserve.generate import MAX_OBJECT_CHARACTERS
from gateway.protocol.torchserve.request import Envelope
from gateway.protocol.translator import JSON, EngineRequest, Reply, Translator
from tests.protocol.torchserve.translations import translator

REQUESTS: dict[str, tuple[dict[str, Any], str, bytes]] = {
    "a text by itself": ({"text_input": "hü"}, "text/plain", "hü".encode()),
    "with more beside it, an object": (
        {"text_input": "hi", "stream": True, "parameters": {"max_tokens": 5, "stop": ["x"]}},
        JSON,
        b'{"prompt":"hi","stream":true,"max_tokens":5,"stop":["x"]}',
    ),
    "an instance": (
        {"text_input": "hi", "parameters": {"envelope": "kserve"}},
        JSON,
        b'{"instances":[{"data":"hi"}]}',
    ),
    "V2 again": (
        {"id": "7", "text_input": "hi", "parameters": {"envelope": "kservev2"}},
        JSON,
        b'{"id":"7","inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","data":["hi"]}]}',
    ),
}


@pytest.mark.parametrize("body, content_type, written", REQUESTS.values(), ids=REQUESTS)
def test_requests(body: dict[str, Any], content_type: str, written: bytes) -> None:
    """A prompt alone is sent as plain text; with further fields it is sent as a JSON object."""
    request = translator(Operation.GENERATE, json.dumps(body).encode(), model="m", version="2").request()
    assert request == EngineRequest("/predictions/m/2", written, content_type)


def test_sequences() -> None:
    """Sequence parameters are sent as headers, and the prompt remains plain text."""
    body = b'{"text_input":"hi","parameters":{"sequence_id":"s","sequence_end":true}}'
    request = translator(Operation.GENERATE_STREAM, body, model="m").request()
    assert request.body == b"hi"
    assert request.fields == ((b"ts_request_sequence_id", b"s"), (b"ts_request_sequence_end", b"true"))


@pytest.mark.parametrize(
    "body, kind, message",
    [
        (b"{", ErrorKind.BAD_REQUEST, "failed to parse the JSON"),
        (b"{}", ErrorKind.BAD_REQUEST, "'text_input' is missing"),
        (b'{"text_input":["a"]}', ErrorKind.BAD_REQUEST, "'text_input' must be a string"),
        (b'{"text_input":"a","envelope":"x"}', ErrorKind.BAD_REQUEST, "parameter 'envelope' is 'x'"),
        (b'{"text_input":"a","envelope":["x"]}', ErrorKind.BAD_REQUEST, "parameter 'envelope' is"),
        (
            b'{"text_input":"a","envelope":"json","top_k":1}',
            ErrorKind.UNSUPPORTED,
            "parameter 'top_k' cannot be told to TorchServe in the json envelope",
        ),
    ],
)
def test_refusals(body: bytes, kind: ErrorKind, message: str) -> None:
    """A request that is malformed, or that the envelope cannot hold, is rejected."""
    with pytest.raises(GatewayError) as refused:
        translator(Operation.GENERATE, body, model="m").request()
    assert refused.value.kind is kind
    assert message in refused.value.message


def test_dropping() -> None:
    """With `drop`, fields that the envelope cannot hold are left out and listed."""
    body = b'{"text_input":"a","top_k":1}'
    request = translator(Operation.GENERATE, body, model="m", envelope=Envelope.JSON, drop=True).request()
    assert (request.body, request.dropped) == (b'{"instances":[{"data":"a"}]}', ("top_k",))


def asked(body: dict[str, Any], *, streams: bool = False) -> Translator:
    operation = Operation.GENERATE_STREAM if streams else Operation.GENERATE
    made = translator(operation, json.dumps(body).encode(), model="here", version="1")
    made.request()
    return made


PLAIN: dict[str, Any] = {"text_input": "hi"}
OBJECT = PLAIN | {"max_tokens": 5}
NAMES = {"model_name": "here", "model_version": "1"}

WHOLE: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a text": (PLAIN, "hellö", {"text_output": "hellö"}),
    "a text that looks like more": (PLAIN, '{"text": "x"}', {"text_output": '{"text": "x"}'}),
    "an object with a text": (OBJECT, '{"text": "x", "tokens": 3}', {"tokens": 3, "text_output": "x"}),
    "a text for an object": (OBJECT, "x", {"text_output": "x"}),
    "an object without one": (OBJECT, '{"a": 1}', {"text_output": '{"a":1}'}),
    "half an object": (OBJECT, '{"text": "x', {"text_output": '{"text": "x'}),
    "an id": (PLAIN | {"id": "7"}, "x", {"id": "7", "text_output": "x"}),
    "predictions": (PLAIN | {"envelope": "kserve"}, '{"predictions": ["x"]}', {"text_output": "x"}),
    "V2": (PLAIN | {"envelope": "kservev2"}, '{"outputs": [{"data": ["x"]}]}', {"text_output": "x"}),
}


@pytest.mark.parametrize("request_body, reply, written", WHOLE.values(), ids=WHOLE)
def test_whole_replies(request_body: dict[str, Any], reply: str, written: dict[str, Any]) -> None:
    """A plain reply is `text_output`; of an object, `text` is, and its other members are kept."""
    answered = asked(request_body).whole(Reply(200, reply.encode(), ""))
    assert answered.status == 200
    assert json.loads(answered.body) == NAMES | written


def events(data: bytes) -> list[Any]:
    return [json.loads(event.removeprefix(b"data: ")) for event in data.split(b"\n\n")[:-1]]


def test_a_piece_is_an_event() -> None:
    """Each chunk of text is forwarded immediately as its own event."""
    made = asked(PLAIN | {"id": "7"}, streams=True)
    assert made.streams
    assert made.feed(b"one ") == (b'data: {"id":"7","model_name":"here","model_version":"1","text_output":"one "}\n\n')
    assert events(made.feed(b"{two")) == [NAMES | {"id": "7", "text_output": "{two"}]
    assert made.end() == b""


def test_objects_are_events() -> None:
    """Each JSON object in a stream is one event, however the stream is split."""
    made = asked(OBJECT, streams=True)
    assert made.feed(b'{"text": "one", ') == b""
    written = events(made.feed(b'"tokens": 1}\n{"text": "two"}{"te'))
    assert written == [NAMES | {"tokens": 1, "text_output": "one"}, NAMES | {"text_output": "two"}]
    assert events(made.end()) == [NAMES | {"text_output": '{"te'}]


def test_texts_where_objects_were_expected() -> None:
    """A handler may reply to a JSON object with plain text."""
    made = asked(OBJECT, streams=True)
    assert events(made.feed(b"one") + made.feed(b"{two") + made.end()) == [
        NAMES | {"text_output": "one"},
        NAMES | {"text_output": "{two"},
    ]


@given(st.text(), st.lists(st.integers(0, 200)))
def test_text_cut_anywhere(text: str, cuts: list[int]) -> None:
    """The text does not depend on how the stream is split, even within a character."""
    data = text.encode()
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = asked(PLAIN, streams=True)
    written = b"".join(made.feed(data[start:stop]) for start, stop in pairwise(at)) + made.end()
    assert "".join(event["text_output"] for event in events(written)) == text


@given(st.lists(st.text(), min_size=1), st.lists(st.integers(0, 300)))
def test_objects_cut_anywhere(texts: list[str], cuts: list[int]) -> None:
    """The objects do not depend on how the stream is split into chunks."""
    data = b"".join(json.dumps({"text": text}).encode() for text in texts)
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    made = asked(OBJECT, streams=True)
    written = b"".join(made.feed(data[start:stop]) for start, stop in pairwise(at)) + made.end()
    assert [event["text_output"] for event in events(written)] == texts


def test_no_text() -> None:
    """Text that is not UTF-8, or that ends within a character, is an upstream protocol error."""
    for data in (b"\xff", "ü".encode()[:1]):
        made = asked(PLAIN, streams=True)
        with pytest.raises(GatewayError, match="not UTF-8") as failed:
            made.feed(data)
            made.end()
        assert failed.value.kind is ErrorKind.UPSTREAM_PROTOCOL


def test_an_object_without_an_end() -> None:
    """An object beyond the size limit is rejected and not buffered further."""
    made = asked(OBJECT, streams=True)
    with pytest.raises(GatewayError, match="an object is longer than"):
        made.feed(b'{"text": "' + b"x" * MAX_OBJECT_CHARACTERS)


def test_failures() -> None:
    """A failed stream request is a whole reply with its status."""
    made = asked(PLAIN, streams=True)
    assert made.whole(Reply(404, b'{"code": 404, "type": "ModelNotFoundException", "message": "no"}')).status == 404
