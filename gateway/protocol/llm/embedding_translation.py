"""Embeddings on their way: OpenAI's client to a V2 engine, and a V2 client to an OpenAI engine."""

from __future__ import annotations

import orjson

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.embeddings import EmbeddingsRequest, read_reply, write_reply, write_request
from gateway.protocol.llm.embeddings_v2 import Signature, read_infer, read_infer_reply, write_infer, write_infer_reply
from gateway.protocol.llm.errors import openai_error, read_error
from gateway.protocol.llm.values import Dialect
from gateway.protocol.operations import model_path
from gateway.protocol.translating import JSON, EngineRequest, Reply

_BINARY = "application/octet-stream"


class _Whole:
    """A translation that streams nothing."""

    streams = False

    def feed(self, data: bytes) -> bytes:
        """Nothing streams."""
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine streams its answer to a request for one")

    def end(self) -> bytes:
        """Nothing streams."""
        return b""

    def failed(self, message: str, kind: str) -> bytes:
        """Nothing streams."""
        return b""


class EmbeddingByInfer(_Whole):
    """An OpenAI client, and a V2 engine; see `Translator`. `model` is the name there."""

    def __init__(
        self, request: EmbeddingsRequest, signature: Signature, *, model: str, version: str = "", drop: bool = False
    ) -> None:
        self._request = request
        self._signature = signature
        self._path = f"{model_path(model, version)}/infer"
        self._drop = drop

    def request(self) -> EngineRequest:
        """Raises: GatewayError(UNSUPPORTED)."""
        body, lost = write_infer(self._request, self._signature, drop=self._drop)
        return EngineRequest(self._path, body, dialect=Dialect.INFER, dropped=tuple(lost))

    def whole(self, reply: Reply) -> Reply:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        if reply.status != 200:
            message, code = read_error(reply.body)
            return Reply(reply.status, openai_error(message, reply.status, code))
        count = len(self._request.inputs)
        found = read_infer_reply(reply.body, reply.head_bytes, signature=self._signature, count=count)
        return Reply(200, write_reply(found, model=self._request.model, base64=self._request.base64))


class InferByEmbedding(_Whole):
    """A V2 client, and an OpenAI engine; see `Translator`. `model` is the name there, `told` the client's."""

    def __init__(self, body: bytes, head_bytes: int | None, *, path: str, model: str, told: str) -> None:
        """Raises: GatewayError."""
        self._request, self._id, self._form = read_infer(body, head_bytes, model=told)
        self._path = path
        self._model = model

    def request(self) -> EngineRequest:
        """What the engine is asked."""
        return EngineRequest(self._path, write_request(self._request, model=self._model), dialect=Dialect.EMBEDDINGS)

    def whole(self, reply: Reply) -> Reply:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        if reply.status != 200:
            return Reply(reply.status, orjson.dumps({"error": read_error(reply.body)[0]}))
        body = write_infer_reply(read_reply(reply.body), model=self._request.model, id=self._id, form=self._form)
        return Reply(200, body.data, JSON if body.head_bytes is None else _BINARY, body.head_bytes)
