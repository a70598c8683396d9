"""MLServer's dialect of V2, where it is another than Triton's.

    ModelStreamInfer   answers ModelInferResponse, not ModelStreamInferResponse, on the same path: another message.
                       What fails ends the stream with a status; all messages go to the first one's model
    generate           takes infer's JSON, and answers it; so does generate_stream (and infer_stream, its first name),
                       with an event for each response
    infer              knows no binary tensors, and reads a body only where its content type is application/json
    errors             {"detail": ...} besides {"error": "..."}; 422 where Triton has 400; where a stream fails, 200 and
                       a connection that ends amid the body, or 500 where nothing was sent yet, a 404 among it

Source: MLServer 1.7.1 `grpc/servicers.py`, `rest/app.py`, `rest/endpoints.py`; tried against a real one
(tests/protocol/test_mlserver.py).
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion import rest_json
from gateway.protocol.conversion.infer import (
    WantedOutputs,
    infer_request_of_rest,
    infer_response_of_rest,
    rest_of_infer_response,
)
from gateway.protocol.conversion.messages import SHARED_MEMORY, read_request
from gateway.protocol.conversion.parameters import json_of_request
from gateway.protocol.conversion.refusals import about, refusing, unsupported
from gateway.protocol.conversion.rest_bodies import parameters, read_object
from gateway.protocol.conversion.sse import SseReader, event_of
from gateway.protocol.conversion.tensors import element_count, flatten, json_of_raw
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.llm.errors import read_error
from gateway.protocol.operations import model_path
from gateway.protocol.translating import EngineRequest, Reply
from gateway.protocol.wire_fields import BYTES, fields, write_varint

NAME = "mlserver"  # in its server metadata

_RESPONSE_TAG = b"\x12"  # of ModelStreamInferResponse: infer_response = 2
_TEXT_INPUT, _TEXT_OUTPUT = "text_input", "text_output"
_DATATYPES = {str: "BYTES", bool: "BOOL", int: "INT64", float: "FP64"}
_OCTETS = "application/octet-stream"


def is_mlserver(server_metadata: bytes) -> bool:
    """Whether the answer to `GET /v2` is MLServer's."""
    try:
        told = orjson.loads(server_metadata)
    except orjson.JSONDecodeError:
        return False
    return isinstance(told, dict) and told.get("name") == NAME


# gRPC


def is_bare_response(message: bytes) -> bool:
    """Whether a message of a ModelStreamInfer's way back is a ModelInferResponse by itself, as MLServer's are.

    Triton's has two fields, an error's text and a response; a bare one begins with its model's name, and has a version,
    an id or outputs behind it. What could be both, a message with a text in field 1 alone, is Triton's error.
    """
    if not message or message[0] == _RESPONSE_TAG[0]:
        return False
    try:
        for number, kind, value in fields(message):
            if number > 2 or kind != BYTES:
                return True
            if number == 2 and not _is_response(value):
                return True
    except GatewayError:
        return False
    return False


def begins_as_tritons(data: bytes) -> bool:
    """Whether the first bytes of a call's way back, gRPC's framing first, begin a response of Triton's, so that all of
    it may pass as it is. False where that is not known: of an error, a compressed message, fewer than six bytes."""
    return data[5:6] == _RESPONSE_TAG and not data[0]


def wrapped(infer_response: bytes) -> bytes:
    """The ModelStreamInferResponse that a bare ModelInferResponse stands for."""
    return b"".join((_RESPONSE_TAG, write_varint(len(infer_response)), infer_response))


def _is_response(value: int | bytes) -> bool:
    """Whether field 2 is a message, and no version: of a ModelInferResponse all fields are bytes, 1 to 6."""
    assert isinstance(value, bytes)
    try:
        return all(number <= 6 and kind == BYTES for number, kind, _ in fields(value))
    except GatewayError:
        return False


# JSON


def inference_of_generate(body: bytes) -> tuple[bytes, bool]:
    """Infer's JSON of a generate body, and whether the answer is a text: it was asked by `text_input`.

    `text_input` and arrays are inputs, what else there is are parameters, as nobody declares them. A body that is
    infer's JSON already, as MLServer's own clients send it, stays as it is.
    Raises: GatewayError(BAD_REQUEST) where it is malformed.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        content = read_object(body)
        if isinstance(content.get("inputs"), list) and _TEXT_INPUT not in content:
            return body, False
        told = parameters(content)
        inputs: list[dict[str, Any]] = []
        others: dict[str, Any] = {}
        for key, value in [*content.items(), *told.items()]:
            if key in ("id", "parameters"):
                continue
            if key == _TEXT_INPUT or isinstance(value, list):
                inputs.append(_input(key, value))
            elif isinstance(value, str | int | float):
                others[key] = value
            elif value is not None:
                raise ValueError(f"'{key}' must be a number, a boolean, a string or an array of these")
        made: dict[str, Any] = {"id": content["id"]} if "id" in content else {}
        if others:
            made["parameters"] = others
        return orjson.dumps(made | {"inputs": inputs}), _TEXT_INPUT in content or _TEXT_INPUT in told


def generate_of_inference(data: bytes, *, is_text: bool = False) -> bytes:
    """A generate reply, or an event of its stream, of MLServer's: an output by its name, the only element by itself.

    `is_text`: the only output, if it is BYTES, is `text_output` whatever its name is. What is no inference response is
    returned as it is.
    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed.
    """
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError:
        with refusing(ErrorKind.UPSTREAM_PROTOCOL):
            content = read_object(data)
    if not isinstance(content, dict) or not isinstance(content.get("outputs"), list):
        return data
    told = {key: content[key] for key in ("id", "model_name", "model_version") if key in content}
    outputs = content["outputs"]
    try:
        for output in outputs:
            elements = output["data"]
            if type(elements) is not list or (elements and type(elements[0]) is list):
                elements = flatten(elements)
            is_only_text = is_text and len(outputs) == 1 and output["datatype"] == "BYTES"
            told[_TEXT_OUTPUT if is_only_text else output["name"]] = elements[0] if len(elements) == 1 else elements
    except (KeyError, TypeError):
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine's reply has an output without data") from None
    for key, value in (content.get("parameters") or {}).items():
        if key not in ("headers", "content_type") and isinstance(value, str | int | float):
            told.setdefault(key, value)
    return orjson.dumps(told)


def json_infer_request(message: bytes) -> bytes:
    """Infer's JSON of a serialised ModelInferRequest, with no tensor in binary.

    Raises: GatewayError, BAD_REQUEST where it is malformed, UNSUPPORTED for what JSON, or MLServer, has no place for.
    """
    with refusing(ErrorKind.BAD_REQUEST):
        request, data = read_request(message)
        made: dict[str, Any] = {"id": request.id} if request.id else {}
        if told := json_of_request(request.parameters):
            made["parameters"] = told
        inputs = made["inputs"] = []
        for tensor, raw in zip(request.inputs, data, strict=True):
            if raw is None:
                raise unsupported(f"input '{tensor.name}' is in shared memory, which MLServer does not read")
            with about(f"input '{tensor.name}'"):
                written = json_of_raw(tensor.datatype, raw, element_count(tensor.shape))
            if not rest_json.is_utf8(written):
                raise unsupported(f"input '{tensor.name}' has bytes that are not UTF-8, which JSON does not hold")
            declared = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
            inputs.append(declared | {"data": orjson.Fragment(written)})
        for output in request.outputs:
            for key in (SHARED_MEMORY, "classification"):
                if key in output.parameters:
                    raise unsupported(f"'{key}' of output '{output.name}': MLServer has nothing like it")
        if request.outputs:
            made["outputs"] = [{"name": output.name} for output in request.outputs]
        return rest_json.write(made)


def error_of(reply: Reply) -> Reply:
    """The V2 reply for one with a status of 400 or above: {"error": "..."}, and 400 for 422."""
    message, _ = read_error(reply.body)
    status = 400 if reply.status == 422 else reply.status
    return Reply(status, orjson.dumps({"error": message or f"MLServer answered with status {reply.status}"}))


def _input(name: str, value: Any) -> dict[str, Any]:
    elements = flatten(value)
    kinds = set(map(type, elements))
    if kinds == {int, float}:
        kinds = {float}
    datatype = _DATATYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if datatype is None:
        raise ValueError(f"'{name}' must be of numbers, of booleans or of strings")
    return {"name": name, "shape": [len(elements)], "datatype": datatype, "data": elements}


class GenerateTranslator:
    """One generate of Triton's for an MLServer, or with `streams` one generate_stream."""

    def __init__(self, body: bytes, *, model: str, version: str = "", streams: bool = False) -> None:
        self.streams = streams
        self._body = body
        self._path = model_path(model, version) + ("/generate_stream" if streams else "/generate")
        self._is_text = False
        self._is_inference = False  # the client speaks MLServer's dialect itself
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


class InferTranslator:
    """One infer with binary tensors, sent or asked for, for an MLServer, which has none."""

    streams = False

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
        body = rest_of_infer_response(infer_response_of_rest(reply.body, None), self._wanted)
        if body.head_bytes is None:
            return Reply(200, body.data)
        return Reply(200, body.data, _OCTETS, body.head_bytes)

    def feed(self, data: bytes) -> bytes:
        """Nothing streams."""
        raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, "the engine streams its answer to a request for one")

    def end(self) -> bytes:
        """Nothing streams."""
        return b""

    def failed(self, message: str, kind: str) -> bytes:
        """Nothing streams."""
        return b""
