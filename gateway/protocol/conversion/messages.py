"""The gRPC inference messages, read with the raw data of each tensor beside them.

Source: Triton's grpc_service.proto; `grpc/infer_handler.cc` (InferGRPCToInput).
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.protocol.conversion import raw_contents
from gateway.protocol.conversion.errors import about, unsupported
from gateway.protocol.conversion.tensors import Raw, RawTensor, raw_of_contents
from gateway.protocol.protobuf import Message, parse

SHARED_MEMORY = "shared_memory_region"


def read_request(message: bytes) -> tuple[Message, list[Raw | None]]:
    """A ModelInferRequest without its raw contents, and of each input the data; None where it is in shared memory.
    Raises: ValueError where it is malformed, or an input has no data or has it twice."""
    rest, raws = raw_contents.split(message, raw_contents.INPUT_TAG)
    request = parse("inference.ModelInferRequest", rest)
    left = iter(raws)
    data: list[Raw | None] = []
    for tensor in request.inputs:
        with about(f"input '{tensor.name}'"):
            if SHARED_MEMORY in tensor.parameters:
                if tensor.HasField("contents"):
                    raise ValueError("it has contents, and its data is in shared memory")
                data.append(None)
            elif tensor.HasField("contents"):
                if raws:
                    raise ValueError("contents field must not be specified when using raw_input_contents")
                data.append(raw_of_contents(tensor.datatype, tensor.contents))
            else:
                raw = next(left, None)
                if raw is None:
                    raise ValueError("unable to find data for it in the request")
                data.append(raw)
    if next(left, None) is not None:
        raise ValueError("raw_input_contents has more tensors than the request has inputs for them")
    return request, data


def read_tensors(message: bytes, engine: str) -> tuple[Message, list[RawTensor]]:
    """As `read_request`, with the inputs as tensors, for an `engine` that reads no shared memory. Raises: ValueError as
    that; GatewayError(UNSUPPORTED) where an input is in shared memory."""
    request, data = read_request(message)
    tensors: list[RawTensor] = []
    for tensor, raw in zip(request.inputs, data, strict=True):
        if raw is None:
            raise unsupported(f"input '{tensor.name}' is in shared memory, which {engine} does not read")
        tensors.append(RawTensor(tensor.name, tensor.datatype, tuple(tensor.shape), raw))
    return request, tensors


def refuse_output_options(request: Message, engine: str) -> None:
    """Raises: GatewayError(UNSUPPORTED) where an output is wanted in shared memory, or as classes."""
    for output in request.outputs:
        for key in (SHARED_MEMORY, "classification"):
            if key in output.parameters:
                raise unsupported(f"'{key}' of output '{output.name}': {engine} has no place for it")


def read_response(message: bytes) -> tuple[Message, list[Raw]]:
    """A ModelInferResponse without its raw contents, and of each output the data; empty where it is in shared memory.
    Raises: ValueError where it is malformed, or raw contents and outputs do not match."""
    rest, raws = raw_contents.split(message, raw_contents.OUTPUT_TAG)
    response = parse("inference.ModelInferResponse", rest)
    if not raws:
        return response, [_typed(output) for output in response.outputs]
    if len(raws) != len(response.outputs):
        raise ValueError(f"the reply has {len(response.outputs)} outputs, and raw contents of {len(raws)}")
    return response, list(raws)


def write_response(response: Message, tensors: Sequence[RawTensor], content_type: str = "") -> bytes:
    """A ModelInferResponse, serialised with these outputs in place of its own, whose parameter is `content_type`."""
    del response.outputs[:]
    for tensor in tensors:
        output = response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        if content_type:
            output.parameters["content_type"].string_param = content_type
    raws = [tensor.raw for tensor in tensors]
    return raw_contents.joined(response.SerializeToString(), raw_contents.OUTPUT_TAG, raws)


def _typed(output: Message) -> bytes:
    with about(f"output '{output.name}'"):
        return raw_of_contents(output.datatype, output.contents)
