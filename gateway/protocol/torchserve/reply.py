"""TorchServe's answers as a V2 client reads them: bytes in, a serialised ModelInferResponse or an error out.

Errors are {"code", "type", "message"}. Two statuses differ from their usual meaning: a wrong token is 400, and a failed
handler is 503, as a full queue is. The type of the exception distinguishes them.
Source: TorchServe 0.12 `TokenAuthorizationHandler.java`, `NettyUtils.java`, `InferenceImpl.java`.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import error_json, read_error, refusing
from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.conversion.json_tensors import tensor_of
from gateway.protocol.conversion.messages import read_response, write_response
from gateway.protocol.conversion.tensors import RawTensor, join_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message
from gateway.protocol.torchserve.request import Envelope, TorchServeRequest
from gateway.protocol.translator import BINARY, JSON, Reply

_STATUSES = {
    (400, "InvalidKeyException"): 401,
    (503, "InternalServerException"): 500,  # the handler failed: another try would fail too
}


def error_of(reply: Reply) -> Reply:
    """The V2 reply for one of TorchServe's with a status of 400 or above."""
    message, _ = read_error(reply.body)
    status = _STATUSES.get((reply.status, _type(reply.body)), reply.status)
    return Reply(status, error_json(message or f"TorchServe answered with status {reply.status}"))


def _type(body: bytes) -> str:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    found = parsed.get("type") if isinstance(parsed, dict) else None
    return found if isinstance(found, str) else ""


OUTPUT = "output"
_PREDICTIONS = "predictions"
_ABSENT = object()


def infer_response(
    sent: TorchServeRequest, body: bytes, content_type: str = "", *, model: str, version: str = ""
) -> bytes:
    """A serialised ModelInferResponse of an answer. `model` and `version` are as the client calls them. Raises:
    GatewayError(UPSTREAM_PROTOCOL) where it is malformed, or has no output that the client wants."""
    value = _json(body, content_type)
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        if sent.envelope is Envelope.KSERVEV2 and isinstance(value, dict) and isinstance(value.get("outputs"), list):
            return _v2_response(sent, body, model, version)
        response = message("inference.ModelInferResponse")(model_name=model, model_version=version, id=sent.id)
        tensors = _tensors(value, sent.outputs)
        if tensors is not None:
            return write_response(response, _wanted(tensors, sent.outputs))
        whole = RawTensor(OUTPUT, "BYTES", (1,), join_elements([body]))
        content_type = content_type or (JSON if value is not _ABSENT else BINARY)
        return write_response(response, _wanted([whole], sent.outputs), content_type)


def _json(body: bytes, content_type: str) -> Any:
    """The value of an answer that is JSON; `_ABSENT` of another."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != JSON and (kind or body.lstrip()[:1] not in (b"[", b"{")):
        return _ABSENT
    try:
        return triton_json.read(body)
    except ValueError:
        return _ABSENT


def _tensors(value: Any, wanted: tuple[str, ...]) -> list[RawTensor] | None:
    """The outputs of a JSON value; None where it stays what it is."""
    if value is _ABSENT:
        return None
    if isinstance(value, dict) and value.keys() == {_PREDICTIONS} and wanted != (_PREDICTIONS,):
        value = value[_PREDICTIONS]
        rows = _columns(value)
        if rows is not None:
            return _all([tensor_of(name, column) for name, column in rows.items()])
    if isinstance(value, dict):
        if not wanted or not value.keys() >= set(wanted):
            return None
        return _all([tensor_of(name, value[name]) for name in wanted])
    return _all([tensor_of(OUTPUT, value)])


def _columns(rows: Any) -> dict[str, list[Any]] | None:
    """The members of objects that all have the same, as lists."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return None
    names = rows[0].keys()
    if any(row.keys() != names for row in rows):
        return None
    return {name: [row[name] for row in rows] for name in names}


def _all(tensors: list[RawTensor | None]) -> list[RawTensor] | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return found if len(found) == len(tensors) else None


def _wanted(tensors: list[RawTensor], wanted: tuple[str, ...]) -> list[RawTensor]:
    """The outputs that the client asks for, in its order. The only one takes the name that it gives to it."""
    if not wanted:
        return tensors
    if len(tensors) == 1 and len(wanted) == 1:
        only = tensors[0]
        return [RawTensor(wanted[0], only.datatype, only.shape, only.raw)]
    by_name = {tensor.name: tensor for tensor in tensors}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise GatewayError(
            ErrorKind.UPSTREAM_PROTOCOL,
            f"the engine's answer has no output '{missing[0]}', only {', '.join(by_name) or 'none'}",
        )
    return [by_name[name] for name in wanted]


def _v2_response(sent: TorchServeRequest, body: bytes, model: str, version: str) -> bytes:
    """The reply of the envelope `kservev2`, whose outputs have the inputs' names. Where the request has no id, it makes
    one up."""
    response, data = read_response(infer_response_of_rest(body, None))
    response.id, response.model_name = sent.id, model
    response.model_version = version or response.model_version
    tensors = [
        RawTensor(output.name, output.datatype, tuple(output.shape), raw)
        for output, raw in zip(response.outputs, data, strict=True)
    ]
    return write_response(response, _wanted(tensors, sent.outputs))
