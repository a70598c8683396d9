"""Embeddings: OpenAI's requests and replies, and V2's infer of a model with a tensor of text in and one of vectors out.

    OpenAI client, V2 engine       write_infer, read_infer_reply
    V2 client, OpenAI engine       read_infer, write_infer_reply

A text a row: as many rows as the model's first axis takes, and vectors in the same order.

Raises: GatewayError, BAD_REQUEST for a malformed request, UNSUPPORTED for what the other side has no place for,
UPSTREAM_PROTOCOL for a malformed reply, or one that has not one vector a text.
Source: OpenAI API reference, "Embeddings". Its client asks for base64 of FP32, little-endian, where its user says
nothing; servers that say nothing else are taken to answer with arrays.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import orjson

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import read_error, refusing, unsupported
from gateway.protocol.conversion.infer import (
    WantedOutputs,
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_response,
)
from gateway.protocol.conversion.messages import read_request as read_message
from gateway.protocol.conversion.messages import read_response
from gateway.protocol.conversion.parameters import json_of_request
from gateway.protocol.conversion.tensors import Raw, element_count, numbers, split_elements
from gateway.protocol.datatypes import ELEMENT_BYTES
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.errors import openai_error
from gateway.protocol.llm.json_fields import Fields, bad_request, dumped, optional, read_fields, required
from gateway.protocol.llm.sampling_fields import accepted_by
from gateway.protocol.llm.token_estimate import tokens_of_bytes
from gateway.protocol.operations import LlmApi, model_path
from gateway.protocol.protobuf import message
from gateway.protocol.translator import EngineRequest, Reply, RestBody, WholeTranslator, in_rest

_FORMATS = ("float", "base64")
_READ = ("model", "input", "encoding_format", "dimensions")

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """Texts to be embedded, or token ids of texts. `options` are all other fields, by OpenAI's names."""

    model: str
    inputs: Sequence[str] | Sequence[Tokens]
    base64: bool = False
    dimensions: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """One vector for each input, as FP32, little-endian. `prompt_tokens` is 0 where the engine reports none;
    `is_estimated`: it has not counted them."""

    vectors: Sequence[bytes]
    prompt_tokens: int = 0
    is_estimated: bool = False


def read_request(body: bytes) -> EmbeddingsRequest:
    """The request of a client."""
    fields = read_fields(body)
    form = optional(fields, "encoding_format", str)
    if form not in (None, *_FORMATS):
        raise bad_request(f"'encoding_format' must be {' or '.join(_FORMATS)}, not {form!r}")
    dimensions = optional(fields, "dimensions", int)
    if dimensions is not None and dimensions < 1:
        raise bad_request("'dimensions' must be 1 or more")
    options = {name: value for name, value in fields.items() if name not in _READ and value is not None}
    inputs = _inputs(fields.get("input"))
    return EmbeddingsRequest(required(fields, "model", str), inputs, form == "base64", dimensions, options)


def write_request(request: EmbeddingsRequest, *, model: str) -> bytes:
    """The body for an engine; `model` is the name there. Vectors are asked for as arrays, which all engines write."""
    body: dict[str, Any] = {"model": model, "input": list(request.inputs), "encoding_format": "float"}
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    return dumped(body | dict(request.options))


def read_reply(body: bytes) -> Embeddings:
    """An engine's reply, whatever the form of its vectors."""
    try:
        reply = orjson.loads(body)
        data = sorted(reply["data"], key=lambda each: each.get("index", 0))
        vectors = [_vector(each["embedding"]) for each in data]
        prompt_tokens = (reply.get("usage") or {}).get("prompt_tokens", 0)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the engine's embeddings cannot be read: {error!r}") from error
    return Embeddings(vectors, prompt_tokens if isinstance(prompt_tokens, int) else 0)


def write_reply(embeddings: Embeddings, *, model: str, base64: bool) -> bytes:
    """The reply for a client; `model` is the name that it asked for."""
    written = [b64encode(each).decode() if base64 else array("f", each).tolist() for each in embeddings.vectors]
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(written)]
    usage: Fields = {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens}
    if embeddings.is_estimated:
        usage["estimated"] = True
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _inputs(value: Any) -> Sequence[str] | Sequence[Tokens]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(isinstance(each, str) for each in value):
            return value
        if all(type(each) is int for each in value):
            return [value]
        if all(isinstance(each, list) and each and all(type(id) is int for id in each) for each in value):
            return value
    raise bad_request("'input' must be a string, an array of strings, or token ids, and not empty")


def _vector(parsed: Any) -> bytes:
    if isinstance(parsed, str):
        try:
            data = a2b_base64(parsed, strict_mode=True)
        except Base64Error as error:
            raise ValueError(f"the base64 of a vector: {error}") from error
        if len(data) % 4:
            raise ValueError("a vector that is no FP32")
        return data
    return array("f", parsed).tobytes()


_VECTORS = ("FP32", "FP64", "FP16", "BF16")
_PREFERRED = ("embedding", "embeddings", "sentence_embedding")  # where a model has several such outputs

# The names that a V2 client knows of a model at an OpenAI engine.
TEXT, EMBEDDING = "text", "embedding"


@dataclass(frozen=True, slots=True)
class EmbeddingSignature:
    """The tensors by which a V2 model embeds; -1 stands for an axis of any length."""

    model: str
    input: str
    input_shape: tuple[int, ...]
    output: str
    dimensions: int  # -1 where the metadata does not say


def signature_of(metadata: Mapping[str, Any]) -> EmbeddingSignature:
    """How a model with one input, of text, and an output of vectors embeds, by its V2 metadata as REST tells it."""
    model = metadata.get("name", "")
    inputs: list[Any] = metadata.get("inputs") or []
    outputs = {
        tensor["name"]: tensor
        for tensor in metadata.get("outputs") or ()
        if tensor["datatype"] in _VECTORS and tensor["shape"]
    }
    if len(inputs) != 1 or inputs[0]["datatype"] != "BYTES" or not outputs:
        raise unsupported(f"the model '{model}' does not embed: it must have one input, of text, and vectors out")
    name = next((name for name in _PREFERRED if name in outputs), next(iter(outputs)))
    if len(outputs) > 1 and name not in _PREFERRED:
        raise unsupported(f"the model '{model}' has several outputs of vectors: {', '.join(outputs)}")
    dimensions = int(outputs[name]["shape"][-1])
    return EmbeddingSignature(model, inputs[0]["name"], tuple(map(int, inputs[0]["shape"])), name, dimensions)


def write_infer(
    request: EmbeddingsRequest, signature: EmbeddingSignature, *, drop: bool = False
) -> tuple[bytes, list[str]]:
    """The JSON body of an infer, its vectors asked for as raw bytes, and the names of what was dropped."""
    texts = [text for text in request.inputs if isinstance(text, str)]
    if len(texts) != len(request.inputs):
        raise unsupported(f"the model '{signature.model}' embeds text, not token ids")
    requested = dict(request.options)
    if request.dimensions not in (None, signature.dimensions):
        requested["dimensions"] = request.dimensions
    _, lost = accepted_by(requested, (), engine="a V2 model that embeds", drop=drop)
    shape = _filled(signature, len(texts))
    tensor = {"name": signature.input, "datatype": "BYTES", "shape": shape, "data": texts}
    output = {"name": signature.output, "parameters": {"binary_data": True}}
    return orjson.dumps({"inputs": [tensor], "outputs": [output]}), lost


def read_infer_reply(body: bytes, head_bytes: int | None, *, signature: EmbeddingSignature, count: int) -> Embeddings:
    """The vectors of an infer reply to `count` texts."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        response, data = read_response(infer_response_of_rest(body, head_bytes))
        for output, raw in zip(response.outputs, data, strict=True):
            if output.name == signature.output:
                return Embeddings(_rows(output.datatype, list(output.shape), raw, count))
        raise ValueError(f"the engine's reply has no output '{signature.output}'")


def read_infer(body: bytes, head_bytes: int | None, *, model: str) -> tuple[EmbeddingsRequest, str, WantedOutputs]:
    """The request of a V2 client's infer body, whose one input has a text a row; its id, and the form of the reply."""
    written, form = infer_request_of_rest(body, head_bytes, model, "")
    with refusing(ErrorKind.BAD_REQUEST):
        request, data = read_message(written)
        if len(request.inputs) != 1 or request.inputs[0].datatype != "BYTES":
            raise ValueError("an embedding takes one input, of datatype BYTES")
        if data[0] is None:
            raise unsupported("the input is in shared memory, which only V2 engines read")
        if strange := [output.name for output in request.outputs if output.name != EMBEDDING]:
            raise ValueError(f"unexpected inference output '{strange[0]}' for model '{model}'")
        texts = [element.decode() for element in split_elements(data[0], element_count(request.inputs[0].shape))]
        if not texts:
            raise ValueError(f"input '{request.inputs[0].name}' has no elements")
        options = json_of_request(request.parameters)
        dimensions = options.pop("dimensions", None)
        if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
            raise ValueError("parameter 'dimensions' must be a whole number from 1")
        return EmbeddingsRequest(model, texts, False, dimensions, options), request.id, form


def write_infer_reply(embeddings: Embeddings, *, model: str, id: str, form: WantedOutputs) -> RestBody:
    """The infer reply for a V2 client: `embedding`, FP32, a row for each text."""
    lengths = {len(vector) // 4 for vector in embeddings.vectors}
    if len(lengths) != 1:
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's embeddings are not all of one length")
    response = message("inference.ModelInferResponse")(id=id, model_name=model, model_version="1")
    response.outputs.add(name=EMBEDDING, datatype="FP32", shape=[len(embeddings.vectors), lengths.pop()])
    raws = [b"".join(embeddings.vectors)]
    written = raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)
    return rest_of_infer_response(written, form)


def embeddings_metadata(model: str) -> dict[str, Any]:
    """The V2 metadata of a model that embeds at an OpenAI engine."""
    return {
        "name": model,
        "versions": ["1"],
        "platform": "openai",
        "inputs": [{"name": TEXT, "datatype": "BYTES", "shape": [-1]}],
        "outputs": [{"name": EMBEDDING, "datatype": "FP32", "shape": [-1, -1]}],
    }


def _filled(signature: EmbeddingSignature, count: int) -> list[int]:
    """The input's shape for so many texts: the first open axis takes them, and another is 1."""
    shape, left = list(signature.input_shape), count
    for index, axis in enumerate(shape):
        if axis == -1:
            shape[index], left = left, 1
    if prod(shape) != count:
        raise unsupported(f"the model '{signature.model}' takes one text a request, and this one has {count}")
    return shape


def _rows(datatype: str, shape: Sequence[int], raw: Raw, count: int) -> list[bytes]:
    """Of [texts, dimensions], or [dimensions] of one text; axes of 1 count for nothing."""
    axes = [axis for axis in shape if axis != 1]
    dimensions = prod(axes) // count if count else 0
    if axes not in ([count, dimensions], [dimensions]) or not dimensions or prod(axes) != count * dimensions:
        raise ValueError(f"the engine's vectors have shape {list(shape)}, which is not one vector for each of {count}")
    if datatype not in _VECTORS or len(raw) != count * dimensions * ELEMENT_BYTES[datatype]:
        raise ValueError(f"{len(raw)} bytes of data are not {count * dimensions} elements of {datatype}")
    data = bytes(raw) if datatype == "FP32" else array("f", numbers(datatype, raw)).tobytes()
    return [data[at : at + 4 * dimensions] for at in range(0, len(data), 4 * dimensions)]


class EmbeddingByInfer(WholeTranslator):
    """An OpenAI client, and a V2 engine; see `Translator`. `model` is the name there."""

    def __init__(
        self, request: EmbeddingsRequest, signature: EmbeddingSignature, *, model: str, drop: bool = False
    ) -> None:
        self._request, self._signature, self._drop = request, signature, drop
        self._path = f"{model_path(model, '')}/infer"

    def request(self) -> EngineRequest:
        """Raises: GatewayError(UNSUPPORTED)."""
        body, lost = write_infer(self._request, self._signature, drop=self._drop)
        return EngineRequest(self._path, body, api=LlmApi.INFER, dropped=tuple(lost))

    def whole(self, reply: Reply) -> Reply:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        if reply.status != 200:
            message, code = read_error(reply.body)
            return Reply(reply.status, openai_error(message, reply.status, code))
        texts = self._request.inputs
        found = read_infer_reply(reply.body, reply.head_bytes, signature=self._signature, count=len(texts))
        tokens = sum(tokens_of_bytes(len(str(text).encode("utf-8", "replace"))) for text in texts)
        found = replace(found, prompt_tokens=tokens, is_estimated=True)
        return Reply(200, write_reply(found, model=self._request.model, base64=self._request.base64))


class InferByEmbedding(WholeTranslator):
    """A V2 client, and an OpenAI engine; see `Translator`. `model` is the name there."""

    def __init__(self, body: bytes, head_bytes: int | None, *, path: str, model: str) -> None:
        """Raises: GatewayError."""
        self._request, self._id, self._form = read_infer(body, head_bytes, model=model)
        self._path = path
        self._model = model

    def request(self) -> EngineRequest:
        """What the engine is asked."""
        return EngineRequest(self._path, write_request(self._request, model=self._model), api=LlmApi.EMBEDDINGS)

    def whole(self, reply: Reply) -> Reply:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        if reply.status != 200:
            return Reply(reply.status, orjson.dumps({"error": read_error(reply.body)[0]}))
        found = read_reply(reply.body)
        return in_rest(write_infer_reply(found, model=self._request.model, id=self._id, form=self._form))
