"""The verdict on two replies to one request, as clients get them."""

from __future__ import annotations

import gzip
import struct

import orjson
import pytest

from gateway.config.experiment_specs import ShadowSpec
from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import ApiCall, read_path
from gateway.shadow.comparison.outputs import read_outputs
from gateway.shadow.comparison.reply import ComparedReply, read_http
from gateway.shadow.comparison.verdict import ComparisonOutcome, judge

SPEC = ShadowSpec("new", excerpts=100)
INFER = "/v2/models/m/infer"


def call(path: str) -> ApiCall:
    found = read_path(path)
    assert found is not None
    return found


def http(body: bytes, *lines: bytes, status: int = 200) -> ComparedReply:
    """A reply as it is written to a client."""
    head = b"HTTP/1.1 %d OK\r\n" % status + b"".join(line + b"\r\n" for line in lines)
    return read_http(head + b"content-length: %d\r\n\r\n" % len(body) + body, 0.1, 0.05)


def infer(value: float, name: str = "y", status: int = 200) -> ComparedReply:
    output = {"name": name, "datatype": "FP32", "shape": [1], "data": [value]}
    return http(orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}), status=status)


def binary(value: float) -> ComparedReply:
    output = {"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}
    head = orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [output]})
    return http(head + struct.pack("<f", value), b"inference-header-content-length: %d" % len(head))


def by_grpc(value: float) -> ComparedReply:
    return ComparedReply(True, 0, infer_response_of_rest(infer(value).body, None))


@pytest.mark.parametrize("primary", [infer(1.5), binary(1.5), by_grpc(1.5)])
@pytest.mark.parametrize("candidate", [infer(1.625), binary(1.625), by_grpc(1.625)])
def test_tensors_are_compared_whatever_they_came_in(primary: ComparedReply, candidate: ComparedReply) -> None:
    """The difference is the same for JSON, binary tensors and protobuf."""
    verdict = judge(primary, candidate, call(INFER), SPEC)
    assert verdict.outcome is ComparisonOutcome.DIFFERS
    assert [each.max_absolute for each in verdict.tensors] == [0.125]


OUTCOMES = [
    (infer(1), infer(1), ComparisonOutcome.AGREES, ""),
    (infer(1), infer(1, status=503), ComparisonOutcome.CANDIDATE_FAILED, "HTTP status 503"),
    (infer(1, status=500), infer(1), ComparisonOutcome.PRIMARY_FAILED, "HTTP status 500"),
    (
        infer(1, status=500),
        ComparedReply(True, 14, b""),
        ComparisonOutcome.BOTH_FAILED,
        "HTTP status 500; candidate: gRPC status 14",
    ),
    (
        infer(1),
        ComparedReply(False, 0, b"", failure="no answer within 1 s"),
        ComparisonOutcome.CANDIDATE_FAILED,
        "no answer within 1 s",
    ),
    (infer(1), http(b"nonsense"), ComparisonOutcome.CANDIDATE_FAILED, "failed to parse the JSON"),
    (infer(1), infer(1, "other"), ComparisonOutcome.DIFFERS, ""),
]


@pytest.mark.parametrize("primary, candidate, outcome, reason", OUTCOMES)
def test_failures_are_told_apart(
    primary: ComparedReply, candidate: ComparedReply, outcome: ComparisonOutcome, reason: str
) -> None:
    """The outcome shows which side failed, and the reason."""
    verdict = judge(primary, candidate, call(INFER), SPEC)
    assert verdict.outcome is outcome
    assert reason in verdict.reason


def test_what_an_answer_says_is_no_reason_unless_it_may_be_told() -> None:
    """An engine's error text is in the reason only where excerpts are allowed, because it may repeat a user's text."""
    failed = http(b'{"error": "no such word: secret"}')
    path = call("/v2/models/m/generate")
    assert "secret" in judge(infer(1), failed, path, SPEC).reason
    assert "secret" not in judge(infer(1), failed, path, ShadowSpec("new")).reason


def sse(*events: object) -> bytes:
    return b"".join(b"data: %b\n\n" % (each if isinstance(each, bytes) else orjson.dumps(each)) for each in events)


def chat_chunk(text: str | None, finish: str | None = None) -> dict[str, object]:
    delta = {} if text is None else {"content": text}
    return {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


EVENTS = b"content-type: text/event-stream"
CHAT = "/v1/chat/completions"


def test_a_streamed_text_is_the_whole_text() -> None:
    """A stream's chunks are joined, so that it agrees with the same text in one piece; chunked framing is removed."""
    whole = http(orjson.dumps({"choices": [{"message": {"content": "one two"}, "finish_reason": "stop"}]}))
    body = sse(chat_chunk("one"), chat_chunk(" two"), chat_chunk(None, "stop"), b"[DONE]")
    pieces = [body[:30], body[30:]]
    framed = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\n%b\r\ntransfer-encoding: chunked\r\n\r\n" % EVENTS
    streamed = read_http(head + framed, 0.1, 0.05)
    verdict = judge(whole, streamed, call(CHAT), SPEC)
    assert verdict.outcome is ComparisonOutcome.AGREES
    assert [(each.name, each.finishes) for each in verdict.texts] == [("choice 0", ("stop", "stop"))]


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    """A stream without its end cannot be compared."""
    broken = http(sse(chat_chunk("one")), EVENTS)
    with pytest.raises(GatewayError, match="breaks off"):
        read_outputs(broken, call(CHAT))


def test_tool_calls_are_compared_as_json() -> None:
    """Tool arguments are compared as JSON: spaces and order do not matter, values do."""

    def calling(arguments: str) -> ComparedReply:
        function = {"name": "add", "arguments": arguments}
        message = {"content": None, "tool_calls": [{"id": "x", "type": "function", "function": function}]}
        return http(orjson.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}))

    one = calling('{"a": 1, "b": 2}')
    assert judge(one, calling('{"b":2,"a":1}'), call(CHAT), SPEC).outcome is ComparisonOutcome.AGREES
    found = judge(one, calling('{"a":1,"b":3}'), call(CHAT), SPEC)
    assert found.outcome is ComparisonOutcome.DIFFERS
    assert found.texts[0].calls_differ


def test_embeddings_are_tensors() -> None:
    """Embeddings, as arrays or as base64, are one tensor for each input."""
    import base64

    def embedded(*vectors: object) -> ComparedReply:
        data = [{"index": place, "embedding": vector} for place, vector in enumerate(vectors)]
        return http(orjson.dumps({"object": "list", "data": data}))

    packed = base64.b64encode(struct.pack("<2f", 1, 2.5)).decode()
    verdict = judge(embedded([1, 2], [3, 4]), embedded(packed, [3, 4]), call("/v1/embeddings"), SPEC)
    assert [(each.name, each.max_absolute) for each in verdict.tensors] == [
        ("embedding[0]", 0.5),
        ("embedding[1]", 0.0),
    ]


def test_generate_has_texts_and_numbers() -> None:
    """Replies of generate, streamed or not, are compared by the names of their outputs."""
    fields = {"model_name": "m", "model_version": "1", "text_output": "one two", "score": 0.5}
    parts = [{"text_output": "one ", "score": 0.5, "model_name": "m"}, {"text_output": "two"}]
    verdict = judge(http(orjson.dumps(fields)), http(sse(*parts), EVENTS), call("/v2/models/m/generate"), SPEC)
    assert verdict.outcome is ComparisonOutcome.AGREES
    assert [each.name for each in verdict.texts] == ["text_output"]
    assert [each.name for each in verdict.tensors] == ["score"]
    failed = http(sse({"error": "it hurts"}), EVENTS)
    assert judge(http(orjson.dumps(fields)), failed, call("/v2/models/m/generate"), SPEC).reason.endswith("it hurts")


def test_texts_in_tensors_are_texts() -> None:
    """BYTES outputs are compared element by element."""

    def texts(*values: str) -> ComparedReply:
        output = {"name": "label", "datatype": "BYTES", "shape": [len(values)], "data": list(values)}
        return http(orjson.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}))

    verdict = judge(texts("cat", "dog"), texts("cat", "fox"), call(INFER), SPEC)
    assert [(each.name, each.agrees) for each in verdict.texts] == [("label[0]", True), ("label[1]", False)]


def test_a_compressed_answer_is_read() -> None:
    """A gzip body is compared after decompression; an unknown coding is an error."""
    plain = infer(1)
    packed = http(gzip.compress(plain.body), b"content-encoding: gzip")
    assert judge(packed, plain, call(INFER), SPEC).outcome is ComparisonOutcome.AGREES
    with pytest.raises(GatewayError, match="'br' is not read"):
        http(b"x", b"content-encoding: br")


def test_what_is_furthest_apart_comes_first() -> None:
    """Differences are sorted: shapes before numbers, numbers by multiples of the tolerance, texts by the position of
    the difference."""
    other = http(orjson.dumps({"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]}]}))
    near, far = judge(infer(1), infer(1.1), call(INFER), SPEC), judge(infer(1), infer(9), call(INFER), SPEC)
    assert near.badness < far.badness < judge(infer(1), other, call(INFER), SPEC).badness
