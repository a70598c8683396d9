"""Predict in JSON: tensors as columns (`inputs`, `outputs`) or as rows (`instances`, `predictions`).

Where a model has one output, TF Serving leaves its name out: it is the signature's; where no signature is known, the
one that the request wants, else `output_0`, as Keras calls it.
Source: TF Serving `g3doc/api_rest.md`, "Predict API"; `util/json_tensor.cc`.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway.protocol.conversion.errors import about
from gateway.protocol.conversion.json_tensors import as_base64, as_text_or_base64, is_base64, read_tensor, write_tensor
from gateway.protocol.conversion.tensors import RawTensor
from gateway.protocol.tfserving.infer_request import TFServingRequest

_UNNAMED = "output_0"


def write_body(requested: TFServingRequest) -> bytes:
    """The request's JSON. Raises: ValueError where the tensors cannot be told in it."""
    body: dict[str, Any] = {"signature_name": requested.signature_name} if requested.signature_name else {}
    if not requested.by_rows:
        body["inputs"] = columns(requested.tensors)
    elif len(requested.tensors) == 1:
        (tensor,) = requested.tensors
        batch_size(requested.tensors)
        body["instances"] = columns(requested.tensors)[tensor.name]
    else:
        body["instances"] = rows(requested.tensors)
    return orjson.dumps(body)


def columns(tensors: tuple[RawTensor, ...]) -> dict[str, Any]:
    """Each tensor by its name."""
    found = {}
    for tensor in tensors:
        with about(f"input '{tensor.name}'"):
            # An object with this one member would be read as bytes: {"inputs": {"b64": "text"}}.
            is_binary = tensor.name.endswith("_bytes") or tensor.name == "b64"
            found[tensor.name] = write_tensor(tensor, as_base64 if is_binary else as_text_or_base64)
    return found


def rows(tensors: tuple[RawTensor, ...]) -> list[dict[str, Any]]:
    """An object a row, with the row of each tensor by its name."""
    batch_size(tensors)
    found = columns(tensors)
    return [dict(zip(found, row, strict=True)) for row in zip(*found.values(), strict=True)]


def batch_size(tensors: tuple[RawTensor, ...]) -> int:
    """The size of the first axis, which the tensors share. Raises: ValueError."""
    for tensor in tensors:
        if not tensor.shape:
            raise ValueError(f"input '{tensor.name}' has no axis, and rows are along the first")
    sizes = {tensor.shape[0] for tensor in tensors}
    if len(sizes) != 1:
        content = ", ".join(f"'{tensor.name}' {tensor.shape[0]}" for tensor in tensors)
        raise ValueError(f"rows need inputs with a first axis of one size, and have {content}")
    return sizes.pop()


def read_body(content: Any, requested: TFServingRequest) -> list[RawTensor]:
    """The outputs that a reply tells. Raises: ValueError where they are not those of the signature."""
    if isinstance(content, dict) and "outputs" in content:
        outputs = content["outputs"]
        by_name = outputs if _is_named(outputs) else {_only_name(requested): outputs}
    elif isinstance(content, dict) and isinstance(content.get("predictions"), list):
        by_name = _columns_of_rows(content["predictions"], requested)
    else:
        raise ValueError("the reply has neither 'outputs' nor 'predictions'")
    return [_output(name, data, requested) for name, data in by_name.items()]


def _is_named(found: Any) -> bool:
    """Whether outputs stand by their names; bytes are an object too."""
    return isinstance(found, dict) and not is_base64(found)


def _only_name(requested: TFServingRequest) -> str:
    known = requested.signature.outputs if requested.signature is not None else {}
    if len(known) > 1:
        raise ValueError(f"the reply has one output without a name, the model has {', '.join(sorted(known))}")
    if known:
        return next(iter(known))
    return requested.wanted[0] if len(requested.wanted) == 1 else _UNNAMED


def _columns_of_rows(rows: list[Any], requested: TFServingRequest) -> dict[str, list[Any]]:
    if not rows and requested.signature is not None:
        return {name: [] for name in requested.signature.outputs}
    if not rows or not _is_named(rows[0]):
        return {_only_name(requested): rows}
    if not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
        raise ValueError("the rows in 'predictions' must be objects with the same members")
    return {name: [row[name] for row in rows] for name in rows[0]}


def _output(name: str, data: Any, requested: TFServingRequest) -> RawTensor:
    info = None if requested.signature is None else requested.signature.outputs.get(name)
    with about(f"output '{name}'"):
        return read_tensor(name, info.datatype if info else None, data, info.shape if info else None)
