"""The translation of one of Triton's V2 requests for an MLServer, and of MLServer's infer_stream for an engine that has
generate_stream.

A client of infer_stream sends infer's JSON, and reads an infer response in each event. Its tensors become the members
of a generate request, whose shapes the engine's configuration gives; each output of the reply has one axis.
Source: MLServer 1.7.1 `rest/endpoints.py` (`infer_stream`); the generate extension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import orjson

from gateway.protocol.conversion.errors import about, refusing, unsupported
from gateway.protocol.conversion.infer import (
    WantedOutputs,
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_response,
)
from gateway.protocol.conversion.rest_bodies import array, label, parameters, read_object, string
from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.conversion.tensors import flatten, inferred_datatype
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.mlserver.bodies import error_of, generate_of_inference, inference_of_generate, json_infer_request
from gateway.protocol.operations import Operation, model_path
from gateway.protocol.translator import EngineRequest, Reply, Translator, V2Request, WholeTranslator, in_rest


def mlserver_translator(request: V2Request) -> Translator:
    """The translation of an infer or a generate."""
    is_infer = request.operation is Operation.INFER
    return MLServerInferTranslator(request) if is_infer else MLServerGenerateTranslator(request)


class _StreamTranslator(ABC):
    """Translates event by event."""

    def __init__(self, request: V2Request) -> None:
        self._request = request
        self._events = SseReader()

    @abstractmethod
    def _event(self, data: bytes) -> bytes: ...

    def feed(self, data: bytes) -> bytes:
        return b"".join([event_of(self._event(event)) for event in self._events.feed(data)])

    def end(self) -> bytes:
        """Raises: GatewayError(UPSTREAM_PROTOCOL) where the stream ends in the middle of an event."""
        if self._events.num_waiting:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's stream ended in the middle of an event")
        return b""


class MLServerGenerateTranslator(_StreamTranslator):
    """One generate of Triton's for an MLServer, or one generate_stream."""

    def __init__(self, request: V2Request) -> None:
        super().__init__(request)
        self.streams = request.operation is Operation.GENERATE_STREAM
        self._is_text = False
        self._is_inference = False  # the client speaks MLServer's API itself

    def request(self) -> EngineRequest:
        request = self._request
        written, self._is_text = inference_of_generate(request.body)
        self._is_inference = written is request.body
        action = "generate_stream" if self.streams else "generate"
        return EngineRequest(f"{model_path(request.model, request.version)}/{action}", written)

    def whole(self, reply: Reply) -> Reply:
        return error_of(reply) if reply.status >= 400 else Reply(200, self._event(reply.body))

    def _event(self, data: bytes) -> bytes:
        return data if self._is_inference else generate_of_inference(data, is_text=self._is_text)


class MLServerInferTranslator(WholeTranslator):
    """One infer with binary tensors, sent or asked for, for an MLServer, which has none."""

    def __init__(self, request: V2Request) -> None:
        self._request = request
        self._wanted: WantedOutputs | None = None

    def request(self) -> EngineRequest:
        request, body = self._request, self._request.body
        if request.head_bytes is not None or b"binary_data" in body:
            message, self._wanted = infer_request_of_rest(body, request.head_bytes, request.model, request.version)
            body = json_infer_request(message)
        return EngineRequest(model_path(request.model, request.version) + "/infer", body)

    def whole(self, reply: Reply) -> Reply:
        if reply.status >= 400:
            return error_of(reply)
        if self._wanted is None:
            return reply
        return in_rest(rest_of_infer_response(infer_response_of_rest(reply.body, None), self._wanted))


_RESERVED = ("id", "model_name", "model_version")
# What Triton tells of a reply beside its outputs.
_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end", "triton_final_response")


def generate_of_inference_request(body: bytes) -> bytes:
    """The generate request of infer's JSON. Raises: GatewayError, BAD_REQUEST where it is malformed, UNSUPPORTED where
    an input has the name of a member that means something else."""
    with refusing(ErrorKind.BAD_REQUEST):
        content = read_object(body)
        members = {
            name: value for name, value in parameters(content).items() if name not in ("headers", "content_type")
        }
        written: dict[str, Any] = {"id": label(content, "id")} if content.get("id") else {}
        for tensor in array(content, "inputs"):
            name = string(tensor, "name")
            if name in ("id", "parameters") or name in written or name in members:
                raise unsupported(f"input '{name}' has the name of another member of a generate request")
            with about(f"input '{name}'"):
                elements = flatten(array(tensor, "data"))
            written[name] = elements[0] if len(elements) == 1 else elements
        if members:
            written["parameters"] = members
        return orjson.dumps(written)


def inference_of_event(data: bytes) -> bytes:
    """An infer response of an event of generate_stream: an output for each of its keys. An error stays one. Raises:
    GatewayError(UPSTREAM_PROTOCOL) where it is malformed."""
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        content = read_object(data)
        if "error" in content:
            return data
        written: dict[str, Any] = {key: label(content, key) for key in _RESERVED if key in content}
        members = {key: content[key] for key in _PARAMETERS if key in content}
        if members:
            written["parameters"] = members
        written["outputs"] = [
            _output(key, value)
            for key, value in content.items()
            if key not in _RESERVED and key not in members and value is not None
        ]
        return orjson.dumps(written)


def _output(name: str, value: Any) -> dict[str, Any]:
    elements = flatten(value)
    datatype = inferred_datatype(elements)
    if datatype is None:  # nothing of one kind: its JSON is a text
        datatype, elements = "BYTES", [orjson.dumps(value).decode()]
    return {"name": name, "shape": [len(elements)], "datatype": datatype, "data": elements}


class InferStreamTranslator(_StreamTranslator):
    """One infer_stream for an engine that has generate_stream."""

    streams = True

    def request(self) -> EngineRequest:
        path = model_path(self._request.model, self._request.version)
        return EngineRequest(f"{path}/generate_stream", generate_of_inference_request(self._request.body))

    def whole(self, reply: Reply) -> Reply:
        """An error, as the engine tells it."""
        return reply

    def _event(self, data: bytes) -> bytes:
        return inference_of_event(data)
