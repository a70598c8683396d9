"""Embeddings in OpenAI's API, and as V2 inference for clients and engines."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import orjson
import pytest
from openai.types import CreateEmbeddingResponse
from tritonclient.http import InferenceServerClient, InferInput, InferResult

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm import embeddings
from gateway.protocol.llm.embeddings import Embeddings, EmbeddingSignature, EmbeddingsRequest, signature_of
from tests.protocol.llm.v2_models import MINILM, TRTLLM, metadata

A, B = struct.pack("<2f", 0.5, -1.0), struct.pack("<2f", 2.0, 0.25)
TWO = Embeddings([A, B], 7)


@pytest.mark.parametrize(
    "body, request_",
    [
        ({"model": "m", "input": "Hi"}, EmbeddingsRequest("m", ["Hi"])),
        ({"model": "m", "input": ["a", "b"], "encoding_format": "base64"}, EmbeddingsRequest("m", ["a", "b"], True)),
        ({"model": "m", "input": [1, 2]}, EmbeddingsRequest("m", [[1, 2]])),
        ({"model": "m", "input": [[1], [2, 3]], "dimensions": 4}, EmbeddingsRequest("m", [[1], [2, 3]], False, 4)),
        (
            {"model": "m", "input": "Hi", "encoding_format": "float", "user": "u", "x": None, "input_type": "query"},
            EmbeddingsRequest("m", ["Hi"], options={"user": "u", "input_type": "query"}),
        ),
    ],
)
def test_requests(body: dict[str, Any], request_: EmbeddingsRequest) -> None:
    """The input may be a text, several texts or token ids; unknown options are kept."""
    assert embeddings.read_request(orjson.dumps(body)) == request_


@pytest.mark.parametrize(
    "body, words",
    [
        (b"{", "not JSON"),
        (b'{"input":"a"}', "'model' is missing"),
        (b'{"model":"m"}', "'input' must be"),
        (b'{"model":"m","input":[]}', "'input' must be"),
        (b'{"model":"m","input":["a",1]}', "'input' must be"),
        (b'{"model":"m","input":[[]]}', "'input' must be"),
        (b'{"model":"m","input":[true]}', "'input' must be"),
        (b'{"model":"m","input":"a","encoding_format":"int8"}', "'encoding_format' must be float or base64"),
        (b'{"model":"m","input":"a","dimensions":0}', "'dimensions' must be"),
        (b'{"model":"m","input":"a","dimensions":"2"}', "'dimensions' must be an integer"),
    ],
)
def test_malformed_requests(body: bytes, words: str) -> None:
    """The error names the malformed field."""
    with pytest.raises(GatewayError, match=words) as raised:
        embeddings.read_request(body)
    assert raised.value.kind is ErrorKind.BAD_REQUEST


def test_a_request_to_an_engine() -> None:
    """All options are sent to the engine, under the engine's model name."""
    request = EmbeddingsRequest("m", ["a"], True, 4, {"user": "u"})
    assert embeddings.write_request(request, model="bge") == (
        b'{"model":"bge","input":["a"],"encoding_format":"float","dimensions":4,"user":"u"}'
    )


@pytest.mark.parametrize("written", [[0.5, -1.0], base64.b64encode(A).decode()])
def test_replies_of_engines(written: Any) -> None:
    """Vectors may be arrays or base64 and are sorted by index; usage is read if present."""
    data = [{"index": 1, "embedding": [2, 0.25]}, {"index": 0, "embedding": written}]
    assert embeddings.read_reply(orjson.dumps({"data": data, "usage": {"prompt_tokens": 7}})) == TWO
    assert embeddings.read_reply(orjson.dumps({"data": data})) == Embeddings([A, B], 0)


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"{}", b'{"data":[{}]}', b'{"data":[{"embedding":"!"}]}', b'{"data":[{"embedding":["a"]}]}']
)
def test_replies_that_are_none(body: bytes) -> None:
    """A malformed reply is an upstream protocol error."""
    with pytest.raises(GatewayError) as raised:
        embeddings.read_reply(body)
    assert raised.value.kind is ErrorKind.UPSTREAM_PROTOCOL


def test_a_reply_for_the_openai_client() -> None:
    """OpenAI's client types parse the reply; base64 vectors hold the same values."""
    reply = CreateEmbeddingResponse.model_validate_json(embeddings.write_reply(TWO, model="m", base64=False))
    assert [each.embedding for each in reply.data] == [[0.5, -1.0], [2.0, 0.25]]
    assert (reply.object, reply.model, reply.usage.prompt_tokens, reply.usage.total_tokens) == ("list", "m", 7, 7)
    written = orjson.loads(embeddings.write_reply(TWO, model="m", base64=True))
    assert np.frombuffer(base64.b64decode(written["data"][1]["embedding"]), np.float32).tolist() == [2.0, 0.25]
    assert [each["index"] for each in written["data"]] == [0, 1]


# A V2 engine


@pytest.mark.parametrize(
    "model, signature",
    [
        (MINILM, EmbeddingSignature("embedding", "text", (-1, 1), "embedding", 384)),
        (metadata("e", "TEXT:BYTES", "OUT:FP16:-1 N:INT32"), EmbeddingSignature("e", "TEXT", (1,), "OUT", -1)),
        (
            metadata("e", "t:BYTES:-1", "tokens:FP32:-1:-1:8 sentence_embedding:FP32:-1:8"),
            EmbeddingSignature("e", "t", (-1,), "sentence_embedding", 8),
        ),
    ],
)
def test_a_model_that_embeds(model: dict[str, Any], signature: EmbeddingSignature) -> None:
    """A model embeds if it has one text input and one vector output, or one named like an embedding."""
    assert signature_of(model) == signature


@pytest.mark.parametrize(
    "model",
    [
        TRTLLM,
        metadata("e", "t:BYTES", "o:BYTES"),
        metadata("e", "t:FP32", "o:FP32"),
        metadata("e", "t:BYTES", "a:FP32 b:FP32"),
    ],
)
def test_a_model_that_does_not(model: dict[str, Any]) -> None:
    """A model of another signature is rejected by name."""
    with pytest.raises(GatewayError, match=model["name"]) as raised:
        signature_of(model)
    assert raised.value.kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize(
    "shape, count, filled",
    [
        ((-1, 1), 1, [1, 1]),
        ((-1, 1), 3, [3, 1]),
        ((-1,), 3, [3]),
        ((-1, -1), 3, [3, 1]),
        ((1,), 1, [1]),
        ((1, 1), 1, [1, 1]),
    ],
)
def test_texts_for_an_engine(shape: tuple[int, ...], count: int, filled: list[int]) -> None:
    """One request sends all texts and requests the vectors as raw bytes."""
    request = EmbeddingsRequest("m", ["a", "b", "c"][:count], dimensions=384)
    body, lost = embeddings.write_infer(request, EmbeddingSignature("e", "text", shape, "out", 384))
    assert orjson.loads(body) == {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": filled, "data": ["a", "b", "c"][:count]}],
        "outputs": [{"name": "out", "parameters": {"binary_data": True}}],
    }
    assert lost == []


@pytest.mark.parametrize(
    "request_, words",
    [
        (EmbeddingsRequest("m", [[1, 2]]), "not token ids"),
        (EmbeddingsRequest("m", ["a", "b"]), "one text a request"),
        (EmbeddingsRequest("m", ["a"], dimensions=8), "'dimensions'"),
        (EmbeddingsRequest("m", ["a"], options={"made_up": "u"}), "'made_up'"),
    ],
)
def test_what_an_engine_has_no_place_for(request_: EmbeddingsRequest, words: str) -> None:
    """Input or options that the engine does not support are rejected by name."""
    with pytest.raises(GatewayError, match=words) as raised:
        embeddings.write_infer(request_, EmbeddingSignature("e", "text", (1,), "out", 384))
    assert raised.value.kind is ErrorKind.UNSUPPORTED


def test_what_may_be_dropped() -> None:
    """With `drop`, unsupported options are listed as dropped; `user` changes no vector."""
    request = EmbeddingsRequest("m", ["a"], dimensions=8, options={"user": "u", "made_up": 1})
    _, lost = embeddings.write_infer(request, EmbeddingSignature("e", "text", (1,), "out", 384), drop=True)
    assert lost == ["made_up", "dimensions"]


def infer_reply(datatype: str, shape: list[int], data: Any) -> bytes:
    return orjson.dumps({"outputs": [{"name": "out", "datatype": datatype, "shape": shape, "data": data}]})


@pytest.mark.parametrize(
    "datatype, shape", [("FP32", [2, 2]), ("FP64", [2, 2]), ("FP32", [2, 1, 2]), ("FP32", [2, 2, 1])]
)
def test_vectors_of_an_engine(datatype: str, shape: list[int]) -> None:
    """The reply yields one FP32 vector for each text, whatever the datatype."""
    body = infer_reply(datatype, shape, [0.5, -1.0, 2.0, 0.25])
    signature = EmbeddingSignature("e", "text", (-1,), "out", 2)
    assert embeddings.read_infer_reply(body, None, signature=signature, count=2) == Embeddings([A, B])


@pytest.mark.parametrize(
    "datatype, raw", [("FP16", struct.pack("<2e", 0.5, -1.0)), ("BF16", A[2:4] + A[6:8]), ("FP32", A)]
)
def test_vectors_as_raw_bytes(datatype: str, raw: bytes) -> None:
    """Raw binary vectors are read, including FP16 and BF16, which JSON cannot hold."""
    output = {"name": "out", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": len(raw)}}
    head = orjson.dumps({"outputs": [output]})
    signature = EmbeddingSignature("e", "text", (1,), "out", 2)
    assert embeddings.read_infer_reply(head + raw, len(head), signature=signature, count=1) == Embeddings([A])


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b'{"outputs":[]}',
        infer_reply("FP32", [2, 3, 2], [0.0] * 12),  # a vector for each token
        infer_reply("FP32", [3, 2], [0.0] * 6),
        infer_reply("FP32", [0], []),
        infer_reply("INT32", [2, 2], [1, 2, 3, 4]),
    ],
)
def test_vectors_that_are_none(body: bytes) -> None:
    """An output that is not one vector for each text is an upstream protocol error."""
    with pytest.raises(GatewayError) as raised:
        embeddings.read_infer_reply(body, None, signature=EmbeddingSignature("e", "text", (-1,), "out", 2), count=2)
    assert raised.value.kind is ErrorKind.UPSTREAM_PROTOCOL


# A V2 client


def test_tritonclient_asks_for_embeddings() -> None:
    """tritonclient's texts become OpenAI's input, and the vectors become a tensor with a row for each text."""
    text = InferInput("text", [2, 1], "BYTES")
    text.set_data_from_numpy(np.array([["Grüße".encode()], [b"b"]], dtype=np.object_))
    body, json_bytes = InferenceServerClient.generate_request_body([text], request_id="7")
    request, id, form = embeddings.read_infer(body, json_bytes, model="m")
    assert (request, id) == (EmbeddingsRequest("m", ["Grüße", "b"]), "7")
    reply = embeddings.write_infer_reply(TWO, model="m", id=id, form=form)
    result = InferResult.from_response_body(reply.data, header_length=reply.head_bytes)
    assert result.as_numpy("embedding").tolist() == [[0.5, -1.0], [2.0, 0.25]]
    assert result.get_response()["id"] == "7"


def test_a_v2_request_in_json() -> None:
    """V2 parameters become OpenAI's fields; the reply is JSON unless the client requests binary data."""
    body = {
        "inputs": [{"name": "t", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
        "parameters": {"dimensions": 2, "user": "u"},
    }
    request, id, form = embeddings.read_infer(orjson.dumps(body), None, model="m")
    assert request == EmbeddingsRequest("m", ["a"], False, 2, {"user": "u"})
    reply = embeddings.write_infer_reply(Embeddings([A]), model="m", id=id, form=form)
    assert reply.data == (
        b'{"model_name":"m","model_version":"1","outputs":[{"name":"embedding","datatype":"FP32","shape":[1,2],'
        b'"data":[0.5,-1.0]}]}'
    )


@pytest.mark.parametrize(
    "inputs, members, words",
    [
        ([], {}, "one input"),
        ([{"name": "t", "shape": [1], "datatype": "FP32", "data": [1]}], {}, "BYTES"),
        ([{"name": "t", "shape": [0], "datatype": "BYTES", "data": []}], {}, "no elements"),
        ([{"name": "t", "shape": [1], "datatype": "BYTES", "data": ["a"]}], {"outputs": [{"name": "x"}]}, "output 'x'"),
        (
            [{"name": "t", "shape": [1], "datatype": "BYTES", "data": ["a"]}],
            {"parameters": {"dimensions": "2"}},
            "'dimensions' must be",
        ),
    ],
)
def test_malformed_v2_requests(inputs: list[dict[str, Any]], members: dict[str, Any], words: str) -> None:
    """The error names what is wrong with a malformed V2 request."""
    with pytest.raises(GatewayError, match=words) as raised:
        embeddings.read_infer(orjson.dumps({"inputs": inputs} | members), None, model="m")
    assert raised.value.kind is ErrorKind.BAD_REQUEST


def test_the_metadata_of_such_a_model_embeds() -> None:
    """A second gateway recognizes an embedding model by the metadata that this gateway reports."""
    signature = signature_of(embeddings.embeddings_metadata("m"))
    assert (signature.input, signature.output) == ("text", "embedding")
