"""Inferences' answers as JSON, with raw tensors behind it.

Source: Triton server `http_server.cc` (InferRequestClass::FinalizeResponse).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import orjson

from engines.core.messages import InferResponse, Raw, Scalar, SharedMemory
from engines.host.classification import classify
from engines.host.model import HostedModel
from engines.host.rest.requests import Forms
from engines.host.rest.triton_json import json_of_output
from gateway.protocol.conversion import triton_json


def write_infer(model: HostedModel, id: str, response: InferResponse, forms: Forms) -> tuple[Sequence[Raw], int | None]:
    """The JSON, and raw tensors behind it; the length of the JSON where there are any.

    Raises: EngineError for classes of what has none, and for what JSON has no form for.
    """
    parts: list[bytes] = [b"{"]
    if id:
        parts.append(b'"id":%b,' % write_text(id))
    parts.append(_named(model.name, model.version))
    if response.parameters:
        written = [b"%b:%b" % (write_text(name), write_scalar(each)) for name, each in response.parameters.items()]
        parts.append(b',"parameters":{%b}' % b",".join(written))
    parts.append(b',"outputs":[')
    raws: list[Raw] = []
    separator = b""
    for output in response.outputs:
        if forms.classes and (num_classes := forms.classes.get(output.name, 0)):
            output = classify(output, num_classes, model)
        parts += (separator, _declared(output.name, output.datatype, output.shape))
        separator = b","
        data = output.data
        if isinstance(data, SharedMemory):
            parts.append(b"}")
        elif forms.binary(output.name):
            if type(data) is not bytes:
                data = memoryview(data).cast("B")
            raws.append(data)
            parts.append(b',"parameters":{"binary_data_size":%d}}' % len(data))
        else:
            parts += (b',"data":', json_of_output(output.name, output.datatype, output.shape, data), b"}")
    parts.append(b"]}")
    head = b"".join(parts)
    if not any(raws):
        return (head,), None
    return (head, *raws), len(head)


@lru_cache(maxsize=2048)
def _named(model: str, version: str) -> bytes:
    return b'"model_name":%b,"model_version":%b' % (write_text(model), write_text(version))


def write_scalar(value: Scalar) -> bytes:
    if isinstance(value, str):
        return write_text(value)
    if isinstance(value, float):
        return triton_json.floats([value])[1:-1]
    return orjson.dumps(value)


def write_text(value: str) -> bytes:
    return triton_json.text(value.encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=2048)
def _declared(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    """An output's object up to its data."""
    axes = b",".join([b"%d" % axis for axis in shape])
    return b'{"name":%b,"datatype":%b,"shape":[%b]' % (write_text(name), write_text(datatype), axes)
