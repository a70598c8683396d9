"""ModelInferRequest messages as inferences: raw tensors are views on the message, never copies.

Clients send the same tensors again and again with other values. The common part of such messages is cached as a layout;
a message that fits one is parsed by comparing a few bytes, without protobuf.
Source: Triton's grpc_service.proto; server `grpc/infer_handler.cc` (InferGRPCToInput, InferAllocatorPayload).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from engines.core.errors import EngineError, internal, invalid
from engines.core.messages import InferRequest, Raw, SharedMemory, TensorData, WantedOutput
from engines.host.grpc.layouts import Layouts
from engines.host.request_fields import RESERVED_PREFIX, RequestParameters, datatype_named
from engines.host.shared_memory import SharedMemoryRegions
from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.parameters import FINAL_RESPONSE_FLAG
from gateway.protocol.conversion.tensors import raw_of_contents
from gateway.protocol.protobuf import Message, parse

_MAX_UINT64 = 2**64 - 1
_OF_CLIENTS = ("int64_param", "bool_param", "string_param", "double_param")


def read_parameters(parameters: Message) -> RequestParameters:
    """Raises: EngineError(INVALID_ARG)."""
    read = RequestParameters({})
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
            case _ if name == FINAL_RESPONSE_FLAG:
                read.wants_empty_final = _flag(name, kind, value)
            case _ if name.startswith(RESERVED_PREFIX):
                raise invalid(
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                    f"starting with 'triton_' are allowed: {FINAL_RESPONSE_FLAG}"
                )
            case _ if kind in _OF_CLIENTS:
                read.own[name] = value
            case _:
                raise _wrong_type(name, "int64_param, bool_param, or string_param.")
    return read


def read_shared_memory(tensor: Message, regions: SharedMemoryRegions) -> SharedMemory | None:
    """The shared memory of a tensor's data, if any.

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
    """The number of classes to return for an output; 0 for its values.

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
    """The value of a tensor's parameter, None where it is missing."""
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


# Up to this size a copy is cheaper than a view that holds the whole message in memory.
_COPY_BYTES = 4096

# The datatypes of each field of InferTensorContents.
_TYPES_OF_CONTENTS = {
    "bool_contents": ("BOOL",),
    "int_contents": ("INT32", "INT8", "INT16"),
    "int64_contents": ("INT64",),
    "uint_contents": ("UINT32", "UINT8", "UINT16"),
    "uint64_contents": ("UINT64",),
    "fp32_contents": ("FP32",),
    "fp64_contents": ("FP64",),
    "bytes_contents": ("BYTES",),
}


class CommonFields(NamedTuple):
    """The common part of messages of one layout: all but the id and the tensors' values."""

    model: str
    version: str
    parameters: RequestParameters
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]  # name, datatype, shape
    outputs: tuple[WantedOutput, ...]
    classes: Mapping[str, int]  # by output


class InferMessage:
    """A received message. Model, version and id are known before the rest is validated."""

    __slots__ = ("_common", "_message", "_raws", "_source", "id", "model", "version")

    def __init__(
        self,
        model: str,
        version: str,
        id: str,
        raws: list[Raw],
        common: CommonFields | None,
        message: Message = None,
        source: tuple[Layouts[CommonFields], bytes, int, int] | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.id = id
        self._raws = raws
        self._common = common
        self._message = message
        self._source = source  # for caching its layout

    def __repr__(self) -> str:
        return f"<Asked {self.model} {self.version} {self.id!r}>"

    @property
    def wants_empty_final(self) -> bool:
        """Whether a decoupled call ends with an empty response; valid after `infer_request`."""
        return self._common is not None and self._common.parameters.wants_empty_final

    @property
    def classes(self) -> Mapping[str, int]:
        """The number of classes by output; valid after `infer_request`."""
        return self._common.classes if self._common is not None else {}

    def infer_request(
        self, regions: SharedMemoryRegions, forwarded: Mapping[str, str], trace: Mapping[str, str], version: str
    ) -> InferRequest:
        """The inference; `forwarded` are headers that become parameters, `version` has digits only.

        Raises: EngineError.
        """
        common = self._common
        if common is None:
            common, inputs = self._read(regions)
        else:
            inputs = tuple(
                [
                    TensorData(name, datatype, shape, raw)
                    for (name, datatype, shape), raw in zip(common.tensors, self._raws, strict=True)
                ]
            )
        return common.parameters.infer_request(self.model, version, self.id, inputs, common.outputs, forwarded, trace)

    def _read(self, regions: SharedMemoryRegions) -> tuple[CommonFields, tuple[TensorData, ...]]:
        """Read the parsed message, and cache its layout where possible."""
        message = self._message
        parameters = read_parameters(message.parameters)
        inputs = self._read_inputs(regions)
        outputs = _read_outputs(message, regions)
        declared = tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in inputs])
        classes = {output.name: output.num_classes for output in outputs if output.num_classes}
        common = self._common = CommonFields(self.model, self.version, parameters, declared, outputs, classes)
        is_plain = len(self._raws) == len(inputs) and not any(output.shared_memory for output in outputs)
        if is_plain and self._source is not None:
            layouts, data, at, end = self._source
            layouts.learn(data, at, end, common)
        return common, inputs

    def _read_inputs(self, regions: SharedMemoryRegions) -> tuple[TensorData, ...]:
        message, raws = self._message, self._raws
        inputs: list[TensorData] = []
        used = 0
        for tensor in message.inputs:
            data: Raw | SharedMemory | None = read_shared_memory(tensor, regions)
            if data is not None:
                if tensor.HasField("contents"):
                    raise invalid(
                        f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' for "
                        f"model '{self.model}'"
                    )
            elif tensor.HasField("contents"):
                if raws:
                    raise invalid(
                        "contents field must not be specified when using raw_input_contents for "
                        f"'{tensor.name}' for model '{self.model}'"
                    )
                data = self._read_contents(tensor)
            elif used < len(raws):
                data = raws[used]
                used += 1
            else:
                raise invalid(
                    f"unable to find data for input tensor '{tensor.name}' for model '{self.model}' in request."
                )
            inputs.append(TensorData(tensor.name, datatype_named(tensor.datatype), tuple(tensor.shape), data))
        return tuple(inputs)

    def _read_contents(self, tensor: Message) -> bytes:
        datatype = datatype_named(tensor.datatype)
        about = f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{self.model}'"
        fields = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
        for number, field in enumerate(fields):
            if number:
                raise invalid(f"{about}, binary data was already supplied.")
            allowed = _TYPES_OF_CONTENTS[field]
            if datatype not in allowed:
                raise invalid(f"{about} of type '{allowed[0]}', expected datatype '{datatype}'")
        return raw_of_contents(tensor.datatype, tensor.contents) if fields else b""


class RequestReader:
    """Parses the messages of one server."""

    def __init__(self) -> None:
        self._layouts: Layouts[CommonFields] = Layouts()

    def __call__(self, data: bytes, at: int, end: int) -> InferMessage:
        """Parse the message in `data[at:end]`.

        Raises: EngineError(INTERNAL) for an invalid message.
        """
        layouts = self._layouts
        layout = layouts.find(data, at, end)
        if layout is not None:
            common = layout.common
            raws: list[Raw] = [
                data[at + start : at + stop]
                if stop - start <= _COPY_BYTES
                else memoryview(data)[at + start : at + stop]
                for start, stop in layout.raws
            ]
            span = layout.id
            try:
                id = data[at + span[0] : at + span[1]].decode() if span is not None else ""
            except UnicodeDecodeError:
                raise _no_message() from None
            return InferMessage(common.model, common.version, id, raws, common)
        return self._parse(data, at, end)

    def _parse(self, data: bytes, at: int, end: int) -> InferMessage:
        message = data if at == 0 and end == len(data) else memoryview(data)[at:end]
        try:
            rest, views = raw_contents.split(message, raw_contents.INPUT_TAG)
            request = parse("inference.ModelInferRequest", rest)
        except ValueError:
            raise _no_message() from None
        raws: list[Raw] = [view if len(view) > _COPY_BYTES else bytes(view) for view in views]
        source = (self._layouts, data, at, end)
        return InferMessage(request.model_name, request.model_version, request.id, raws, None, request, source)


def _read_outputs(message: Message, regions: SharedMemoryRegions) -> tuple[WantedOutput, ...]:
    outputs: dict[str, WantedOutput] = {}
    for output in message.outputs:
        shared_memory = read_shared_memory(output, regions)
        num_classes = read_num_classes(output)
        if shared_memory is not None and num_classes:
            raise invalid("output can't set both 'shared_memory_region' and 'classification'")
        outputs.setdefault(output.name, WantedOutput(output.name, num_classes, shared_memory))
    return tuple(outputs.values())


def _no_message() -> EngineError:
    return internal("Unable to parse request")
