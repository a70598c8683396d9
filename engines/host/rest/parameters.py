"""The parameters of a request's JSON, as Triton reads them.

Source: Triton server `http_server.cc` (ParseJsonTritonParams, SetTritonParameterFromJsonParameter).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engines.core.errors import invalid
from engines.core.messages import Scalar
from engines.host.rest.triton_json import MAX_UINT64, flag, has, is_signed, members, string, unsigned

_RESERVED = "triton_"


@dataclass(slots=True)
class RestRequestParameters:
    """A request's own parameters, and what the others of them mean."""

    own: dict[str, Scalar]
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    wants_binary: bool = False  # every output that is not named


_NONE = RestRequestParameters({})


def read_parameters(content: Any) -> RestRequestParameters:
    """Those of a request, which is not to change them.

    Raises: EngineError.
    """
    if not has(content, "parameters"):
        return _NONE
    read = RestRequestParameters({})
    for name, value in members(content["parameters"], "failed to get request params.").items():
        about = f"Unable to parse '{name}'"
        match name:
            case "sequence_id":
                is_number = type(value) is int and 0 <= value <= MAX_UINT64
                read.sequence_id = value if is_number else string(value, about)
            case "sequence_start":
                read.sequence_start = flag(value, about)
            case "sequence_end":
                read.sequence_end = flag(value, about)
            case "priority":
                read.priority = unsigned(value, about)
            case "timeout":
                read.timeout_us = unsigned(value, about)
            case "binary_data_output":
                read.wants_binary = flag(value, about)
            case _ if name.startswith(_RESERVED):
                raise invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
                )
            case _:
                read.own[name] = read_scalar(name, value)
    return read


def read_scalar(name: str, value: Any) -> Scalar:
    """A parameter that a client chose.

    Raises: EngineError(INVALID_ARG) where it is neither a number nor a boolean nor a string.
    """
    if isinstance(value, str | bool | float) or is_signed(value):
        return value  # type: ignore[no-any-return]
    if type(value) is int:
        return float(value)
    raise invalid(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")
