"""Embeddings on their way: OpenAI's client to a V2 engine, and a V2 client to an OpenAI engine."""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import read_error
from gateway.protocol.llm.embeddings import EmbeddingsRequest, read_reply, write_reply, write_request
from gateway.protocol.llm.embeddings_v2 import (
    EmbeddingSignature,
    read_infer,
    read_infer_reply,
    write_infer,
    write_infer_reply,
)
from gateway.protocol.llm.errors import openai_error
from gateway.protocol.operations import LlmApi, model_path
from gateway.protocol.translator import EngineRequest, Reply, WholeTranslator, in_rest


class EmbeddingByInfer(WholeTranslator):
    """An OpenAI client, and a V2 engine; see `Translator`. `model` is the name there."""

    def __init__(
        self,
        request: EmbeddingsRequest,
        signature: EmbeddingSignature,
        *,
        model: str,
        version: str = "",
        drop: bool = False,
    ) -> None:
        self._request = request
        self._signature = signature
        self._path = f"{model_path(model, version)}/infer"
        self._drop = drop

    def request(self) -> EngineRequest:
        """Raises: GatewayError(UNSUPPORTED)."""
        body, lost = write_infer(self._request, self._signature, drop=self._drop)
        return EngineRequest(self._path, body, api=LlmApi.INFER, dropped=tuple(lost))

    def whole(self, reply: Reply) -> Reply:
        """Raises: GatewayError(UPSTREAM_PROTOCOL)."""
        if reply.status != 200:
            message, code = read_error(reply.body)
            return Reply(reply.status, openai_error(message, reply.status, code))
        count = len(self._request.inputs)
        found = read_infer_reply(reply.body, reply.head_bytes, signature=self._signature, count=count)
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
