"""Infer bodies as inferences: JSON with raw tensors behind it, which are not copied, or the data of the only input.

Source: Triton server `http_server.cc` (EVBufferToInput, ParseJsonTritonIO, ParseJsonTritonParams,
SetTritonParameterFromJsonParameter, EVBufferToRawInput); core `infer_request.cc` (Normalize).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

from engines.core.errors import invalid
from engines.core.messages import InferRequest, Raw, Scalar, SharedMemory, TensorData, WantedOutput
from engines.host.model import HostedModel
from engines.host.request_fields import RESERVED_PREFIX, RequestParameters, datatype_named
from engines.host.rest.triton_json import (
    MAX_UINT64,
    flag,
    get,
    has,
    is_signed,
    list_of,
    member,
    members,
    raw_of_json,
    read_json,
    string,
    unsigned,
)
from engines.host.shared_memory import SharedMemoryRegions
from gateway.protocol.conversion.tensors import element_count
from gateway.protocol.datatypes import ELEMENT_BYTES, config_datatype

_NONE = RequestParameters({})


def _sequence_id(value: Any, about: str) -> int | str:
    return value if type(value) is int and 0 <= value <= MAX_UINT64 else string(value, about)


# The attribute of each parameter for the host, and the reader of its value.
_FIELDS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "sequence_id": ("sequence_id", _sequence_id),
    "sequence_start": ("sequence_start", flag),
    "sequence_end": ("sequence_end", flag),
    "priority": ("priority", unsigned),
    "timeout": ("timeout_us", unsigned),
    "binary_data_output": ("wants_binary", flag),
}


def read_parameters(content: Any) -> RequestParameters:
    """The parameters of a request; the caller must not change them. Raises: EngineError."""
    if not has(content, "parameters"):
        return _NONE
    read = RequestParameters({})
    for name, value in members(content["parameters"], "failed to get request params.").items():
        if name in _FIELDS:
            attribute, reader = _FIELDS[name]
            setattr(read, attribute, reader(value, f"Unable to parse '{name}'"))
        elif name.startswith(RESERVED_PREFIX):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
            )
        else:
            read.own[name] = read_scalar(name, value)
    return read


def read_scalar(name: str, value: Any) -> Scalar:
    """A parameter for the model.

    Raises: EngineError(INVALID_ARG) where it is neither a number nor a boolean nor a string.
    """
    if isinstance(value, str | bool | float) or is_signed(value):
        return value  # type: ignore[no-any-return]
    if type(value) is int:
        return float(value)
    raise invalid(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


_NO_PARAMETERS: dict[str, Any] = {}

# The product of a shape's axes grows with their number: an unbounded one would take unbounded time.
_MAX_PLAIN_AXES = 64


class Forms(NamedTuple):
    """The forms of outputs: binary or JSON, and the number of classes in place of values."""

    default_is_binary: bool = False
    is_binary: Mapping[str, bool] = _NO_PARAMETERS
    classes: Mapping[str, int] = _NO_PARAMETERS

    def binary(self, output: str) -> bool:
        return self.is_binary.get(output, self.default_is_binary)


ALL_IN_JSON, ALL_IN_BINARY = Forms(), Forms(default_is_binary=True)


class _Tail:
    """The raw tensors behind the JSON, in their order."""

    def __init__(self, body: bytes, at: int, model: str) -> None:
        self._body = body
        self._at = at
        self._model = model

    def take(self, name: str, num_bytes: int) -> Raw:
        start = self._at
        stop = start + num_bytes
        missing = stop - len(self._body)
        if missing > 0:
            raise invalid(
                f"unexpected size for input '{name}', expecting {missing} additional bytes for model '{self._model}'"
            )
        self._at = stop
        return memoryview(self._body)[start:stop] if num_bytes > 4096 else self._body[start:stop]

    def close(self) -> None:
        if self._at < len(self._body):
            raise invalid(f"unexpected additional input data for model '{self._model}'")


def read_infer(
    body: bytes,
    head_bytes: int,
    model: str,
    version: str,
    regions: SharedMemoryRegions,
    forwarded: Mapping[str, str],
    trace: Mapping[str, str],
) -> tuple[InferRequest, Forms]:
    """The inference of a body whose first `head_bytes`, one at least, are JSON, and the forms of its outputs.

    Raises: EngineError.
    """
    content = read_json(body if head_bytes == len(body) else body[:head_bytes])
    id = string(content["id"], "Unable to parse 'id'") if has(content, "id") else ""
    parameters = read_parameters(content)
    tail = _Tail(body, head_bytes, model)
    inputs = tuple(
        [
            _read_input(declared, tail, regions)
            for declared in list_of(member(content, "inputs", "Unable to parse 'inputs'"), "Unable to parse 'inputs'")
        ]
    )
    tail.close()
    outputs, is_binary = _read_outputs(content, regions) if "outputs" in content else ((), _NO_PARAMETERS)
    request = parameters.infer_request(model, version, id, inputs, outputs, forwarded, trace)
    if not outputs:
        return request, ALL_IN_BINARY if parameters.wants_binary else ALL_IN_JSON
    classes = {output.name: output.num_classes for output in outputs if output.num_classes}
    return request, Forms(parameters.wants_binary, is_binary, classes)


def _read_plain_input(declared: Any) -> TensorData | None:
    """The common input, with its values in JSON and no parameters; None for any other and for an invalid one."""
    if type(declared) is not dict or len(declared) != 4:
        return None
    name, datatype = declared.get("name"), declared.get("datatype")
    shape, data = declared.get("shape"), declared.get("data")
    if type(name) is not str or type(datatype) is not str or type(shape) is not list or type(data) is not list:
        return None
    if not shape or len(shape) > _MAX_PLAIN_AXES:
        return None
    count = 1
    for axis in shape:
        if type(axis) is not int or not 0 < axis <= MAX_UINT64:
            return None
        count *= axis
    datatype = datatype_named(datatype)
    return TensorData(name, datatype, tuple(shape), raw_of_json(name, datatype, data, count))


def _read_input(declared: Any, tail: _Tail, regions: SharedMemoryRegions) -> TensorData:
    if (plain := _read_plain_input(declared)) is not None:
        return plain
    parameters = get(declared, "parameters") or _NO_PARAMETERS
    _check_sources(declared, parameters)
    name = string(member(declared, "name", "Unable to parse 'name'"), "Unable to parse 'name'")
    about = "Unable to parse 'datatype'"
    datatype = datatype_named(string(member(declared, "datatype", about), about))
    about = "Unable to parse 'shape'"
    shape = tuple(list_of(member(declared, "shape", about), about))
    for axis in shape:
        unsigned(axis, about)
    data: Raw | SharedMemory
    if "binary_data_size" in parameters:
        data = tail.take(name, unsigned(parameters["binary_data_size"], "Unable to parse 'binary_data_size'"))
    elif "shared_memory_region" in parameters:
        data = _shared_memory(parameters, regions)
    else:
        count = _num_elements(shape)
        about = "Unable to parse 'data'"
        data = raw_of_json(name, datatype, list_of(member(declared, "data", about), about), count) if count else b""
    return TensorData(name, datatype, shape, data)


def _num_elements(shape: tuple[int, ...]) -> int:
    """The number of elements of a shape; too large a number for one that no data can have."""
    try:
        return element_count(shape) if shape and 0 not in shape else 0
    except ValueError:
        return MAX_UINT64


def _check_sources(declared: Any, parameters: Any) -> None:
    """Raises: EngineError(INVALID_ARG) unless an input's data is in exactly one place."""
    sources = [
        f" '{name}'"
        for name, owner in (
            ("data", declared),
            ("binary_data_size", parameters),
            ("shared_memory_region", parameters),
        )
        if has(owner, name)
    ]
    if len(sources) != 1:
        raise invalid(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            f"'shared_memory_region' in 'parameters'. But {'set' if sources else 'no field is set'}{''.join(sources)}"
        )


def _read_outputs(content: Any, regions: SharedMemoryRegions) -> tuple[tuple[WantedOutput, ...], dict[str, bool]]:
    outputs: dict[str, WantedOutput] = {}
    is_binary: dict[str, bool] = {}
    for declared in list_of(content["outputs"], "Unable to parse 'outputs'"):
        if type(declared) is dict and len(declared) == 1 and type(name := declared.get("name")) is str:
            outputs.setdefault(name, WantedOutput(name))
            is_binary.setdefault(name, False)
            continue
        parameters = get(declared, "parameters") or _NO_PARAMETERS
        _check_output(parameters)
        name = string(member(declared, "name", "Unable to parse 'name'"), "Unable to parse 'name'")
        num_classes = 0
        if has(parameters, "classification"):
            num_classes = unsigned(parameters["classification"], "Unable to set 'classification'")
        shared_memory = _shared_memory(parameters, regions) if has(parameters, "shared_memory_region") else None
        binary = has(parameters, "binary_data") and flag(parameters["binary_data"], "Unable to parse 'binary_data'")
        if name not in outputs:
            outputs[name] = WantedOutput(name, num_classes, shared_memory)
            is_binary[name] = binary
    return tuple(outputs.values()), is_binary


def _check_output(parameters: Any) -> None:
    if not has(parameters, "shared_memory_region"):
        return
    if "classification" in parameters:
        raise invalid("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and flag(parameters["binary_data"], "Unable to set 'binary_data'"):
        raise invalid("Output can't set both 'shared_memory_region' and 'binary_data'")


def _shared_memory(parameters: Any, regions: SharedMemoryRegions) -> SharedMemory:
    region = string(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region'")
    offset = unsigned(parameters.get("shared_memory_offset", 0), "Unable to parse 'shared_memory_offset'")
    byte_size = unsigned(parameters.get("shared_memory_byte_size", 0), "Unable to parse 'shared_memory_byte_size'")
    return regions.resolve(region, offset, byte_size)


def read_raw_infer(
    body: bytes, model: HostedModel, version: str, forwarded: Mapping[str, str], trace: Mapping[str, str]
) -> tuple[InferRequest, Forms]:
    """The inference of a body that is the data of a model's only input, without JSON; its outputs are binary.

    Raises: EngineError(INVALID_ARG) where the configuration leaves its shape open.
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
    inputs = (TensorData(declared.name, datatype, shape, body),)
    return RequestParameters({}).infer_request(model.name, version, "", inputs, (), forwarded, trace), ALL_IN_BINARY
