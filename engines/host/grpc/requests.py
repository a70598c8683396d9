"""ModelInferRequest messages as inferences: raw tensors are views on the message, never copies.

Clients send the same tensors again and again with other values. The common part of such messages is cached as a layout;
a message that fits one is parsed by comparing a few bytes, without protobuf.
Source: Triton's grpc_service.proto; server `grpc/infer_handler.cc` (InferGRPCToInput, InferAllocatorPayload).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.core.errors import internal, invalid
from engines.core.messages import InferRequest, Raw, SharedMemory, TensorData, WantedOutput
from engines.host.grpc.layouts import CommonFields, Layouts
from engines.host.request_fields import RESERVED_PREFIX, RequestParameters, datatype_named
from engines.host.shared_memory import SharedMemoryRegions
from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.parameters import FINAL_RESPONSE_FLAG
from gateway.protocol.conversion.tensors import CONTENTS, raw_of_contents
from gateway.protocol.protobuf import Message, parse

_MAX_UINT64 = 2**64 - 1
# The attribute of each parameter for the host, and the fields that its value may be in.
_FIELDS = {
    "sequence_id": ("sequence_id", ("int64_param", "string_param")),
    "sequence_start": ("sequence_start", ("bool_param",)),
    "sequence_end": ("sequence_end", ("bool_param",)),
    "priority": ("priority", ("int64_param", "uint64_param")),
    "timeout": ("timeout_us", ("int64_param",)),
    FINAL_RESPONSE_FLAG: ("wants_empty_final", ("bool_param",)),
}
_OF_CLIENTS = ("", ("int64_param", "bool_param", "string_param", "double_param"))


def read_parameters(parameters: Message) -> RequestParameters:
    """Raises: EngineError(INVALID_ARG)."""
    read = RequestParameters({})
    for name, parameter in parameters.items():
        attribute, kinds = _FIELDS.get(name, _OF_CLIENTS)
        kind = parameter.WhichOneof("parameter_choice")
        if not attribute and name.startswith(RESERVED_PREFIX):
            raise invalid(
                "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                f"starting with 'triton_' are allowed: {FINAL_RESPONSE_FLAG}"
            )
        if kind not in kinds:
            expected = " or ".join(kinds) if attribute else "int64_param, bool_param, or string_param"
            raise invalid(f"invalid value type for '{name}' parameter, expected {expected}.")
        value = getattr(parameter, kind)
        if not attribute:
            read.own[name] = value
        elif name == "priority" and value < 0:
            raise invalid("invalid value for 'priority', expected value >= 0.")
        else:  # a negative number stands for one beyond int64
            setattr(read, attribute, value & _MAX_UINT64 if kind == "int64_param" else value)
    return read


def read_shared_memory(tensor: Message, regions: SharedMemoryRegions) -> SharedMemory | None:
    """The shared memory of a tensor's data, if any. Raises: EngineError."""
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
    """The number of classes to return for an output; 0 for its values. Raises: EngineError(INVALID_ARG)."""
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
    if name not in tensor.parameters:
        return None
    parameter = tensor.parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise invalid(f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}.")
    return getattr(parameter, kind)


# Up to this size a copy is cheaper than a view that holds the whole message in memory.
_COPY_BYTES = 4096

# The widest datatype in each field of InferTensorContents.
_WIDEST = {field: datatype for datatype, (field, _) in CONTENTS.items()}
_NO_CLASSES: Mapping[str, int] = {}


class InferMessage:
    """A received message. Model, version and id are known before the rest is validated.

    Valid after `infer_request`: whether a decoupled call ends with an empty response, and the number of classes by
    output.
    """

    wants_empty_final = False
    classes = _NO_CLASSES

    def __init__(
        self,
        model: str,
        version: str,
        id: str,
        raws: list[Raw],
        common: CommonFields | None,
        message: Message = None,
        source: tuple[Layouts, bytes, int, int] | None = None,
    ) -> None:
        self.model = model
        self.version = version
        self.id = id
        self._raws = raws
        self._common = common
        self._message = message
        self._source = source  # for caching its layout

    def infer_request(
        self, regions: SharedMemoryRegions, forwarded: Mapping[str, str], trace: Mapping[str, str], version: str
    ) -> InferRequest:
        """The inference; `version` has digits only. Raises: EngineError."""
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
        self.classes, self.wants_empty_final = common.classes, common.parameters.wants_empty_final
        return common.parameters.infer_request(self.model, version, self.id, inputs, common.outputs, forwarded, trace)

    def _read(self, regions: SharedMemoryRegions) -> tuple[CommonFields, tuple[TensorData, ...]]:
        """Read the parsed message, and cache its layout where possible."""
        message = self._message
        parameters = read_parameters(message.parameters)
        inputs = self._read_inputs(regions)
        outputs = _read_outputs(message, regions)
        declared = tuple([(tensor.name, tensor.datatype, tensor.shape) for tensor in inputs])
        classes = {output.name: output.num_classes for output in outputs if output.num_classes}
        common = CommonFields(self.model, self.version, parameters, declared, outputs, classes)
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
            if CONTENTS.get(datatype, ("",))[0] != field:
                raise invalid(f"{about} of type '{_WIDEST[field]}', expected datatype '{datatype}'")
        return raw_of_contents(tensor.datatype, tensor.contents) if fields else b""


_NO_MESSAGE = "Unable to parse request"


class RequestReader:
    """Parses the messages of one server."""

    def __init__(self) -> None:
        self._layouts: Layouts = Layouts()

    def __call__(self, data: bytes, at: int, end: int) -> InferMessage:
        """Parse the message in `data[at:end]`. Raises: EngineError(INTERNAL) for an invalid message."""
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
                raise internal(_NO_MESSAGE) from None
            return InferMessage(common.model, common.version, id, raws, common)
        return self._parse(data, at, end)

    def _parse(self, data: bytes, at: int, end: int) -> InferMessage:
        message = data if at == 0 and end == len(data) else memoryview(data)[at:end]
        try:
            rest, views = raw_contents.split(message, raw_contents.INPUT_TAG)
            request = parse("inference.ModelInferRequest", rest)
        except ValueError:
            raise internal(_NO_MESSAGE) from None
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
