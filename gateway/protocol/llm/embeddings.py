"""OpenAI's embeddings: requests and replies, read and written.

Raises: GatewayError(BAD_REQUEST) that names a request's field; GatewayError(UPSTREAM_PROTOCOL) for a malformed reply.
Source: OpenAI API reference, "Embeddings". Its client asks for base64 of FP32, little-endian, where its user says
nothing; servers that say nothing else are taken to answer with arrays.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.json_fields import bad_request, dumped, optional, read_fields, required

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
    """One vector for each input, as FP32, little-endian. `prompt_tokens` is 0 where the engine tells none."""

    vectors: Sequence[bytes]
    prompt_tokens: int = 0


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
    data = [
        {"object": "embedding", "index": index, "embedding": _written(vector, base64)}
        for index, vector in enumerate(embeddings.vectors)
    ]
    usage = {"prompt_tokens": embeddings.prompt_tokens, "total_tokens": embeddings.prompt_tokens}
    return orjson.dumps({"object": "list", "data": data, "model": model, "usage": usage})


def _inputs(given: Any) -> Sequence[str] | Sequence[Tokens]:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(isinstance(each, str) for each in given):
            return given
        if all(type(each) is int for each in given):
            return [given]
        if all(isinstance(each, list) and each and all(type(id) is int for id in each) for each in given):
            return given
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


def _written(vector: bytes, base64: bool) -> str | list[float]:
    if base64:
        return b64encode(vector).decode()
    return array("f", vector).tolist()
