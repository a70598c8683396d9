"""Triton's errors for inputs, outputs and batch inputs, after the model has completed them.

Source: Triton core `model_config_utils.cc` ValidateModelIOConfig, ValidateIOShape, ValidateBatchIO.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import prod

from engines.repository.config.parser import ConfigError, require
from gateway.protocol.protobuf import Message

ANY = -1
TENSORRT_PLATFORM = "tensorrt_plan"


def check_tensors(config: Message, *, is_complete: bool = True) -> None:
    """`is_complete`: whether a datatype or dims that are missing are wrong, and no longer the model's to fill in.
    Raises: ConfigError."""
    try:
        for tensor in config.input:
            _check_tensor(tensor, "input", config, is_complete)
            is_fit = len(tensor.dims) == 3 or not (tensor.dims or is_complete)
            is_image = tensor.format in (tensor.FORMAT_NHWC, tensor.FORMAT_NCHW)
            require(is_fit or not is_image, "model input NHWC/NCHW require 3 dims", "input", tensor.name, "format")
        for tensor in config.output:
            _check_tensor(tensor, "output", config, is_complete)
        if is_complete:
            _check_batch_tensors(config)
    except ConfigError as error:
        raise ConfigError(f"{error.message} for {config.name}", *error.words) from None


def _check_tensor(tensor: Message, kind: str, config: Message, is_complete: bool) -> None:
    who = f"model {kind} '{tensor.name}'"
    where = (kind, tensor.name)
    require(tensor.name, f"model {kind} must specify 'name'", kind)
    require(tensor.data_type or not is_complete, f"{who} must specify 'data_type'", *where)
    require(tensor.dims or not is_complete, f"{who} must specify 'dims'", *where)
    reshapes, shape = tensor.HasField("reshape"), tensor.reshape.shape
    text = "cannot have empty reshape for non-batching model as scalar tensors are not supported"
    require(not reshapes or shape or config.max_batch_size, f"{who} {text}", *where, "reshape")
    text = "dimension must be integer >= 1, or -1 to indicate a variable-size dimension"
    require(all(_is_size(size) for size in tensor.dims), f"{who} {text}", *where, "dims")
    if reshapes and tensor.dims:
        _check_reshape(tensor.dims, shape, who, (*where, "reshape"))
    if config.platform != TENSORRT_PLATFORM:
        text = "shape tensors are only supported for TensorRT platform"
        require(not tensor.is_shape_tensor, text, *where, "is_shape_tensor")
        text = "Non-linear IO format is only supported for the TensorRT platform"
        require(not tensor.is_non_linear_format_io, text, *where, "is_non_linear_format_io")


def _is_size(size: int) -> bool:
    return size >= 1 or size == ANY


def _check_reshape(dims: Sequence[int], shape: Sequence[int], who: str, where: tuple[str, ...]) -> None:
    """The elements between variable sizes are equal in both shapes: [2, 4, -1, 6] reshapes to [8, -1, 1, 6]."""
    text = "reshape dimensions must be integer >= 1, or -1 to indicate a variable-size dimension"
    require(all(_is_size(size) for size in shape), f"{who} {text}", *where)
    text = f"{who} has different size for dims and reshape"
    require((ANY in dims) == (ANY in shape), text, *where)
    number = f"{who} has different number of variable-size dimensions for dims and reshape"
    require(list(dims).count(ANY) == list(shape).count(ANY), number, *where)
    require(_counts(dims) == _counts(shape), text, *where)


def _counts(sizes: Sequence[int]) -> list[int]:
    """The element counts between variable sizes; 1 for an empty stretch."""
    padded = [1, *(part for size in sizes for part in ((ANY, 1) if size == ANY else (size,)))]
    return [prod(stretch) for is_any, stretch in groupby(padded, lambda size: size == ANY) if not is_any]


def _check_batch_tensors(config: Message) -> None:
    inputs = {tensor.name for tensor in config.input}
    outputs = {tensor.name for tensor in config.output}
    for batch_input in config.batch_input:
        _check_sources(batch_input, "input", inputs)
        names = batch_input.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number
        is_known = names[batch_input.data_type].name in ("TYPE_INT32", "TYPE_FP32")
        require(is_known, "batch input data type must be TYPE_INT32 or TYPE_FP32", "batch_input", "data_type")
    for batch_output in config.batch_output:
        _check_sources(batch_output, "output", inputs)
        targets = list(batch_output.target_name)
        for name in targets:
            require(name in outputs, f"unknown target output name '{name}'", "batch_output", "target_name")
            text = f"target output name '{name}' can only be specified once"
            require(targets.count(name) == 1, text, "batch_output", "target_name")


def _check_sources(batch_tensor: Message, kind: str, inputs: set[str]) -> None:
    where = (f"batch_{kind}", "source_input")
    sources = batch_tensor.source_input
    named = batch_tensor.Kind.Name(batch_tensor.kind)
    require(len(sources) == 1, f"batch {kind} kind '{named}' expects 1 source input, got {len(sources)}", *where)
    for name in sources:
        require(name in inputs, f"unknown source input name '{name}'", *where)
