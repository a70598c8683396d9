"""Infer bodies without JSON: the data of a model's only input.

Source: Triton server `http_server.cc` (EVBufferToRawInput); core `infer_request.cc` (Normalize).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from engines.core.errors import invalid
from engines.core.messages import InferRequest, TensorData
from engines.host.frontend_api import ServedModel
from engines.host.rest.requests import ALL_IN_BINARY, Forms
from gateway.protocol.datatypes import ELEMENT_BYTES, config_datatype


def read_raw_infer(
    body: bytes, model: ServedModel, version: str, trace: Mapping[str, str]
) -> tuple[InferRequest, Forms]:
    """The inference of a body that is the data of a model's only input; its outputs are told in binary.

    Raises: EngineError(INVALID_ARG) where the model's configuration does not say what it is.
    """
    about = "[request id: <id_unknown>] "
    config = model.config
    if len(config.input) != 1:
        raise invalid(
            f"{about}Raw request must only have 1 input (found 1) to be deduced but got {len(config.input)} inputs in "
            f"'{model.name}' model configuration"
        )
    declared = config.input[0]
    datatype = config_datatype(declared.data_type)
    dims = list(declared.dims)
    open_axes = [axis for axis, dim in enumerate(dims) if dim == -1]
    count = prod(dim for dim in dims if dim != -1)
    if len(open_axes) > 1:
        raise invalid(
            f"{about}The shape of the raw input '{declared.name}' can not be deduced because there are more than one "
            "variable-sized dimension"
        )
    if datatype == "BYTES":
        if open_axes or count != 1:
            raise invalid(f"{about}For BYTE datatype raw input '{declared.name}', the model must have input shape [1]")
        body = len(body).to_bytes(4, "little") + body
    elif open_axes:
        dims[open_axes[0]] = len(body) // max(1, count) // ELEMENT_BYTES[datatype]
    shape = (1, *dims) if model.has_batches else tuple(dims)
    request = InferRequest(model.name, version, inputs=(TensorData(declared.name, datatype, shape, body),), trace=trace)
    return request, ALL_IN_BINARY
