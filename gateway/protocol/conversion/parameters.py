"""Parameters of requests, replies and tensors: JSON's scalars and gRPC's InferParameter.

    JSON               InferParameter
    true, false        bool_param
    "text"             string_param
    5                  int64_param
    2**63              double_param in a request, as Triton reads it; uint64_param in a reply
    5.0                double_param

Source: Triton server `http_server.cc` (SetTritonParameterFromJsonParameter, ParseJsonTritonParams) and
`grpc/infer_handler.cc` (SetInferenceRequestMetadata); the parameters extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.protocol.conversion import triton_json
from gateway.protocol.conversion.errors import unsupported
from gateway.protocol.protobuf import Message

# Of a request, REST's own: how the outputs travel.
BINARY_DATA_OUTPUT = "binary_data_output"
# Of a tensor, REST's own: how its data travels. gRPC knows none of them, and Triton's does not read them there.
TRANSPORT = frozenset({"binary_data", "binary_data_size"})

# gRPC's own, of its stream: asked of it in a request, told by it in each response.
FINAL_RESPONSE_FLAG = "triton_enable_empty_final_response"
IS_FINAL = "triton_final_response"

# Triton holds both as uint64: REST says so, and gRPC has the same 64 bits in an int64_param.
_UNSIGNED = frozenset({"sequence_id", "timeout"})
_MAX_INT64, _MAX_UINT64 = 2**63 - 1, 2**64 - 1


def json_of(parameters: Mapping[str, Message], leave_out: Iterable[str] = ()) -> dict[str, Any]:
    """A map of InferParameters as an object for `triton_json.write`. Raises: ValueError where one has no value."""
    values = {}
    for name, parameter in parameters.items():
        if name in leave_out:
            continue
        chosen = parameter.WhichOneof("parameter_choice")
        if chosen is None:
            raise ValueError(f"parameter '{name}' has no value")
        values[name] = triton_json.scalar(getattr(parameter, chosen))
    return values


def json_of_request(parameters: Mapping[str, Message]) -> dict[str, Any]:
    """The same of a ModelInferRequest's; what it asks of its own stream stays behind. Raises: GatewayError(UNSUPPORTED)
    where REST would take one for its own."""
    if BINARY_DATA_OUTPUT in parameters:
        raise unsupported(f"parameter '{BINARY_DATA_OUTPUT}' is REST's own, and the engine is asked by REST")
    values = json_of(parameters, (FINAL_RESPONSE_FLAG,))
    for name in _UNSIGNED & values.keys():
        if type(values[name]) is int:
            values[name] &= _MAX_UINT64
    return values


def set_for_request(parameter: Message, name: str, value: Any) -> None:
    """Set what a client wrote. Raises: ValueError where it is neither a number nor a boolean nor a string."""
    match value:
        case bool():
            parameter.bool_param = value
        case str():
            parameter.string_param = value
        case int() if name in _UNSIGNED:
            if not 0 <= value <= _MAX_UINT64:
                raise ValueError(f"parameter '{name}' must be a whole number of up to 64 bits, not {value}")
            parameter.int64_param = value if value <= _MAX_INT64 else value - 2**64
        case int() if name == "priority" and _MAX_INT64 < value <= _MAX_UINT64:
            parameter.uint64_param = value
        case int() if -_MAX_INT64 - 1 <= value <= _MAX_INT64:
            parameter.int64_param = value
        case int() | float():
            parameter.double_param = _double(name, value)
        case _:
            raise ValueError(f"parameter '{name}' must be a number, a boolean or a string")


def set_for_reply(parameter: Message, name: str, value: Any) -> None:
    """Set what an engine wrote; what gRPC has no type for becomes the text of its JSON. Raises: ValueError where it is
    beyond even that."""
    match value:
        case bool():
            parameter.bool_param = value
        case str():
            parameter.string_param = value
        case int() if -_MAX_INT64 - 1 <= value <= _MAX_INT64:
            parameter.int64_param = value
        case int() if 0 < value <= _MAX_UINT64:
            parameter.uint64_param = value
        case int() | float():
            parameter.double_param = _double(name, value)
        case _:
            try:
                parameter.string_param = json.dumps(value, separators=(",", ":"))
            except RecursionError:
                raise ValueError(f"parameter '{name}' is nested too deeply") from None


def _double(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"parameter '{name}' is too large for a double") from None
