"""The translation of one of Triton's V2 requests for an MLServer, by what it asks."""

from __future__ import annotations

import orjson

from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.conversion.infer import (
    WantedOutputs,
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_response,
)
from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.bodies import error_of, generate_of_inference, inference_of_generate, json_infer_request
from gateway.protocol.operations import Operation, model_path
from gateway.protocol.translator import EngineRequest, Reply, Translator, WholeTranslator, in_rest


def translator(
    operation: Operation, body: bytes = b"", head_bytes: int | None = None, *, model: str, version: str = ""
) -> Translator:
    """The translation of a V2 REST request; `model` is the name at MLServer, `head_bytes` as
    `Inference-Header-Content-Length` tells.

    Raises: GatewayError(UNSUPPORTED) for an operation that passes as it is, or that MLServer has nothing like.
    """
    match operation:
        case Operation.INFER:
            return MLServerInferTranslator(body, head_bytes, model=model, version=version)
        case Operation.GENERATE | Operation.GENERATE_STREAM:
            streams = operation is Operation.GENERATE_STREAM
            return MLServerGenerateTranslator(body, model=model, version=version, streams=streams)
        case _:
            raise unsupported(f"'{operation.value}' is nothing that is translated for MLServer")


class MLServerGenerateTranslator:
    """One generate of Triton's for an MLServer, or with `streams` one generate_stream."""

    def __init__(self, body: bytes, *, model: str, version: str = "", streams: bool = False) -> None:
        self.streams = streams
        self._body = body
        self._path = model_path(model, version) + ("/generate_stream" if streams else "/generate")
        self._is_text = False
        self._is_inference = False  # the client speaks MLServer's API itself
        self._events = SseReader()

    def request(self) -> EngineRequest:
        """As `Translator.request`."""
        written, self._is_text = inference_of_generate(self._body)
        self._is_inference = written is self._body
        return EngineRequest(self._path, written)

    def whole(self, reply: Reply) -> Reply:
        """As `Translator.whole`."""
        if reply.status >= 400:
            return error_of(reply)
        return Reply(200, self._told(reply.body))

    def feed(self, data: bytes) -> bytes:
        """As `Translator.feed`."""
        return b"".join([event_of(self._told(event)) for event in self._events.feed(data)])

    def end(self) -> bytes:
        """As `Translator.end`; MLServer ends no stream in the middle of an event.

        Raises: GatewayError(UPSTREAM_PROTOCOL) where it does.
        """
        if self._events.num_waiting:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's stream ended in the middle of an event")
        return b""

    def failed(self, message: str, kind: str) -> bytes:
        """As `Translator.failed`."""
        return event_of(orjson.dumps({"error": message}))

    def _told(self, data: bytes) -> bytes:
        return data if self._is_inference else generate_of_inference(data, is_text=self._is_text)


class MLServerInferTranslator(WholeTranslator):
    """One infer with binary tensors, sent or asked for, for an MLServer, which has none."""

    def __init__(self, body: bytes, head_bytes: int | None = None, *, model: str, version: str = "") -> None:
        self._body, self._head_bytes = body, head_bytes
        self._model, self._version = model, version
        self._wanted: WantedOutputs | None = None

    def request(self) -> EngineRequest:
        """As `Translator.request`."""
        body = self._body
        if self._head_bytes is not None or b"binary_data" in body:
            message, self._wanted = infer_request_of_rest(body, self._head_bytes, self._model, self._version)
            body = json_infer_request(message)
        return EngineRequest(model_path(self._model, self._version) + "/infer", body)

    def whole(self, reply: Reply) -> Reply:
        """As `Translator.whole`."""
        if reply.status >= 400:
            return error_of(reply)
        if self._wanted is None:
            return reply
        return in_rest(rest_of_infer_response(infer_response_of_rest(reply.body, None), self._wanted))
