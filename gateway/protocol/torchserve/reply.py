"""What a V2 client reads of TorchServe's answer: its bytes in, a serialised ModelInferResponse out."""

from __future__ import annotations

from typing import Any

from gateway.protocol.conversion import raw_contents, triton_json
from gateway.protocol.conversion.errors import refusing
from gateway.protocol.conversion.infer import infer_response_of_rest
from gateway.protocol.conversion.tensors import Raw, join_elements
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.protobuf import message, parse
from gateway.protocol.torchserve.json_tensors import Tensor, tensor_of
from gateway.protocol.torchserve.request import Envelope, TorchServeRequest
from gateway.protocol.translator import BINARY, JSON

OUTPUT = "output"
_PREDICTIONS = "predictions"
_ABSENT = object()


def answered(asked: TorchServeRequest, body: bytes, content_type: str = "", *, model: str, version: str = "") -> bytes:
    """A serialised ModelInferResponse of an answer. `model` and `version` are as the client calls them.

    Raises: GatewayError(UPSTREAM_PROTOCOL) where it is malformed, or has no output that the client wants.
    """
    value = _json(body, content_type)
    with refusing(ErrorKind.UPSTREAM_PROTOCOL):
        if asked.envelope is Envelope.KSERVEV2 and isinstance(value, dict) and isinstance(value.get("outputs"), list):
            return _as_it_says(asked, body, model, version)
        response = message("inference.ModelInferResponse")(model_name=model, model_version=version, id=asked.id)
        tensors = _tensors(value, asked.outputs)
        is_whole = tensors is None
        if tensors is None:
            tensors = [Tensor(OUTPUT, "BYTES", (1,), join_elements([body]))]
        raws: list[Raw] = []
        for tensor in _wanted(tensors, asked.outputs):
            added = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            if is_whole:
                told = content_type or (JSON if value is not _ABSENT else BINARY)
                added.parameters["content_type"].string_param = told
            raws.append(tensor.raw)
        return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)


def _json(body: bytes, content_type: str) -> Any:
    """The value of an answer that is JSON; `_ABSENT` of another."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != JSON and (kind or body.lstrip()[:1] not in (b"[", b"{")):
        return _ABSENT
    try:
        return triton_json.read(body)
    except ValueError:
        return _ABSENT


def _tensors(value: Any, wanted: tuple[str, ...]) -> list[Tensor] | None:
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


def _all(tensors: list[Tensor | None]) -> list[Tensor] | None:
    found = [tensor for tensor in tensors if tensor is not None]
    return found if len(found) == len(tensors) else None


def _wanted(tensors: list[Tensor], wanted: tuple[str, ...]) -> list[Tensor]:
    """The outputs that the client asks for, in its order. The only one takes the name that it gives to it."""
    if not wanted:
        return tensors
    if len(tensors) == 1 and len(wanted) == 1:
        only = tensors[0]
        return [Tensor(wanted[0], only.datatype, only.shape, only.raw)]
    by_name = {tensor.name: tensor for tensor in tensors}
    missing = [name for name in wanted if name not in by_name]
    if missing:
        raise GatewayError(
            ErrorKind.UPSTREAM_PROTOCOL,
            f"the engine's answer has no output '{missing[0]}', only {', '.join(by_name) or 'none'}",
        )
    return [by_name[name] for name in wanted]


def _as_it_says(asked: TorchServeRequest, body: bytes, model: str, version: str) -> bytes:
    """The reply of the envelope `kservev2`, whose outputs have the inputs' names. Where the request has no id, it makes
    one up."""
    response, raws = raw_contents.split(infer_response_of_rest(body, None), raw_contents.OUTPUT_TAG)
    told = parse("inference.ModelInferResponse", response)
    told.id, told.model_name = asked.id, model
    told.model_version = version or told.model_version
    tensors = [
        Tensor(output.name, output.datatype, tuple(output.shape), raw)
        for output, raw in zip(told.outputs, raws, strict=True)
    ]
    kept = _wanted(tensors, asked.outputs)
    del told.outputs[:]
    for tensor in kept:
        told.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return raw_contents.joined(told.SerializeToString(), raw_contents.OUTPUT_TAG, [tensor.raw for tensor in kept])
