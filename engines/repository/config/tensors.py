"""Triton's errors for inputs, outputs and batch inputs, after the model has completed them.

Source: Triton core `model_config_utils.cc` ValidateModelIOConfig, ValidateIOShape, ValidateBatchIO.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from engines.repository.config.parser import ConfigError
from gateway.protocol.protobuf import Message

ANY = -1
TENSORRT_PLATFORM = "tensorrt_plan"


def check_tensors(config: Message, *, is_complete: bool = True) -> None:
    """`is_complete`: whether a datatype or dims that are missing are wrong, and no longer the model's to fill in.

    Raises: ConfigError.
    """
    try:
        for tensor in config.input:
            _check_tensor(tensor, "input", config, is_complete)
            if tensor.format in (tensor.FORMAT_NHWC, tensor.FORMAT_NCHW) and len(tensor.dims) not in (
                {3} if is_complete else {0, 3}
            ):
                raise ConfigError("model input NHWC/NCHW require 3 dims", "input", tensor.name, "format")
        for tensor in config.output:
            _check_tensor(tensor, "output", config, is_complete)
        if is_complete:
            _check_batch_tensors(config)
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {config.name}", *error.words) from None


def _check_tensor(tensor: Message, kind: str, config: Message, is_complete: bool) -> None:
    who = f"model {kind} '{tensor.name}'"
    where = (kind, tensor.name)
    if not tensor.name:
        raise ConfigError(f"model {kind} must specify 'name'", kind)
    if not tensor.data_type and is_complete:
        raise ConfigError(f"{who} must specify 'data_type'", *where)
    if not tensor.dims and is_complete:
        raise ConfigError(f"{who} must specify 'dims'", *where)
    if tensor.HasField("reshape") and not tensor.reshape.shape and config.max_batch_size == 0:
        text = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
        raise ConfigError(f"{who} {text}", *where, "reshape")
    if not all(_is_size(size) for size in tensor.dims):
        text = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
        raise ConfigError(f"{who} {text}", *where, "dims")
    if tensor.HasField("reshape") and tensor.dims:
        _check_reshape(tensor.dims, tensor.reshape.shape, who, (*where, "reshape"))
    if config.platform != TENSORRT_PLATFORM:
        if tensor.is_shape_tensor:
            raise ConfigError("shape tensors are only supported for TensorRT platform", *where, "is_shape_tensor")
        if tensor.is_non_linear_format_io:
            text = "Non-linear IO format is only supported for the TensorRT platform"
            raise ConfigError(text, *where, "is_non_linear_format_io")


def _is_size(size: int) -> bool:
    return size >= 1 or size == ANY


def _check_reshape(dims: Sequence[int], shape: Sequence[int], who: str, where: tuple[str, ...]) -> None:
    """The elements between variable sizes are equal in both shapes: [2, 4, -1, 6] reshapes to [8, -1, 1, 6]."""
    if not all(_is_size(size) for size in shape):
        text = "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
        raise ConfigError(f"{who} {text}", *where)
    if (ANY in dims) != (ANY in shape):
        raise ConfigError(f"{who} has different size for dims and reshape", *where)
    if list(dims).count(ANY) != list(shape).count(ANY):
        text = "has different number of variable-size dimensions for dims and reshape"
        raise ConfigError(f"{who} {text}", *where)
    if _counts(dims) != _counts(shape):
        raise ConfigError(f"{who} has different size for dims and reshape", *where)


def _counts(sizes: Sequence[int]) -> list[int]:
    """The element counts between variable sizes; 1 for an empty stretch."""
    padded = [1, *(part for size in sizes for part in ((ANY, 1) if size == ANY else (size,)))]
    return [prod(stretch) for is_any, stretch in groupby(padded, lambda size: size == ANY) if not is_any]


def _check_batch_tensors(config: Message) -> None:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for batch_input in config.batch_input:
        _check_sources(batch_input, "input", inputs)
        names = {number: name for name, number in _datatypes(batch_input)}
        if names[batch_input.data_type] not in ("TYPE_INT32", "TYPE_FP32"):
            raise ConfigError("batch input data type must be TYPE_INT32 or TYPE_FP32", "batch_input", "data_type")
    for batch_output in config.batch_output:
        _check_sources(batch_output, "output", inputs)
        targets = list(batch_output.target_name)
        for name in targets:
            if name not in outputs:
                raise ConfigError(f"unknown target output name '{name}'", "batch_output", "target_name")
            if targets.count(name) > 1:
                text = f"target output name '{name}' can only be specified once"
                raise ConfigError(text, "batch_output", "target_name")


def _check_sources(batch_tensor: Message, kind: str, inputs: set[str]) -> None:
    where = (f"batch_{kind}", "source_input")
    if len(batch_tensor.source_input) != 1:
        named = batch_tensor.Kind.Name(batch_tensor.kind)
        text = f"batch {kind} kind '{named}' expects 1 source input, got {len(batch_tensor.source_input)}"
        raise ConfigError(text, *where)
    for name in batch_tensor.source_input:
        if name not in inputs:
            raise ConfigError(f"unknown source input name '{name}'", *where)


def _datatypes(batch_input: Message) -> list[tuple[str, int]]:
    schema = batch_input.DESCRIPTOR.fields_by_name["data_type"].enum_type
    return [(value.name, value.number) for value in schema.values]
