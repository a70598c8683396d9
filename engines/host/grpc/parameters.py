"""The parameters of a ModelInferRequest and of its tensors, as Triton reads them.

Source: Triton server `grpc/infer_handler.cc` (SetInferenceRequestMetadata), `grpc/grpc_utils.h`
(ParseSharedMemoryParams, ParseClassificationParams).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.core.errors import EngineError, invalid
from engines.core.messages import Scalar, SharedMemory
from engines.host.frontend_api import Regions
from gateway.protocol.conversion.parameters import ASKS_FOR_FINAL
from gateway.protocol.protobuf import Message

_RESERVED = "triton_"
_MAX_UINT64 = 2**64 - 1
_OF_CLIENTS = ("int64_param", "bool_param", "string_param", "double_param")


@dataclass(slots=True)
class GrpcRequestParameters:
    """A request's own parameters, and what the others of them mean."""

    own: dict[str, Scalar]
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    wants_empty_final: bool = False  # a decoupled call's end is told by a response of its own where it comes alone


def read_parameters(parameters: Message) -> GrpcRequestParameters:
    """Raises: EngineError(INVALID_ARG)."""
    read = GrpcRequestParameters({})
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        value: Any = getattr(parameter, kind) if kind else None
        match name:
            case "sequence_id":
                if kind not in ("int64_param", "string_param"):
                    raise _wrong_type(name, "int64_param or string_param.")
                read.sequence_id = value if kind == "string_param" else value & _MAX_UINT64
            case "sequence_start":
                read.sequence_start = _flag(name, kind, value)
            case "sequence_end":
                read.sequence_end = _flag(name, kind, value)
            case "priority":
                if kind not in ("int64_param", "uint64_param"):
                    raise _wrong_type(name, "int64_param or uint64_param.")
                if value < 0:
                    raise invalid("invalid value for 'priority', expected value >= 0.")
                read.priority = value
            case "timeout":
                if kind != "int64_param":
                    raise _wrong_type(name, "int64_param.")
                read.timeout_us = value & _MAX_UINT64
            case _ if name == ASKS_FOR_FINAL:
                read.wants_empty_final = _flag(name, kind, value)
            case _ if name.startswith(_RESERVED):
                raise invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                    f"starting with 'triton_' are allowed: {ASKS_FOR_FINAL}"
                )
            case _ if kind in _OF_CLIENTS:
                read.own[name] = value
            case _:
                raise _wrong_type(name, "int64_param, bool_param, or string_param.")
    return read


def read_shared_memory(tensor: Message, regions: Regions) -> SharedMemory | None:
    """Where a tensor's data is; None where it is not in shared memory.

    Raises: EngineError.
    """
    parameters = tensor.parameters
    if not parameters:
        return None
    if "shared_memory_region" not in parameters:
        for name in ("shared_memory_offset", "shared_memory_byte_size"):
            if name in parameters:
                raise invalid(
                    f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor '{tensor.name}'"
                )
        return None
    region: str = _of_tensor(tensor, "shared_memory_region", "string_param")
    offset: int = _of_tensor(tensor, "shared_memory_offset", "int64_param") or 0
    byte_size: int | None = _of_tensor(tensor, "shared_memory_byte_size", "int64_param")
    if byte_size is None:
        raise invalid(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{tensor.name}'"
        )
    return regions.resolve(region, offset, byte_size)


def read_num_classes(output: Message) -> int:
    """How many classes an output is wanted as; 0 where its values are wanted.

    Raises: EngineError(INVALID_ARG).
    """
    if "classification" not in output.parameters:
        return 0
    parameter = output.parameters["classification"]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise invalid("invalid value type for 'classification' parameter, expected int64_param")
    if parameter.int64_param <= 0:
        raise invalid("invalid value for 'classification' parameter, expected >= 0")
    number: int = parameter.int64_param
    return number


def _of_tensor(tensor: Message, name: str, kind: str) -> Any:
    """The value of a tensor's parameter, None where it has none of that name."""
    if name not in tensor.parameters:
        return None
    parameter = tensor.parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise invalid(f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}.")
    return getattr(parameter, kind)


def _flag(name: str, kind: str | None, value: Any) -> bool:
    if kind != "bool_param":
        raise _wrong_type(name, "bool_param.")
    return bool(value)


def _wrong_type(name: str, expected: str) -> EngineError:
    return invalid(f"invalid value type for '{name}' parameter, expected {expected}")
