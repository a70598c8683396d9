"""Sessions of onnxruntime: created by the configuration, checked against it, and the tensors that they declare."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.backends.framework_values import datatype_of_name
from engines.backends.model_config import (
    FileTensor,
    FileTensors,
    ModelSignature,
    Parameters,
    TensorSpec,
)
from engines.backends.model_files import library, model_file
from engines.backends.onnxruntime.providers import CPU, Provider
from engines.core.errors import internal, invalid

# Triton's graph levels.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_SESSION_ENTRIES = ("session.use_device_allocator_for_initializers",)
_TENSOR = re.compile(r"tensor\((bool|u?int(?:8|16|32|64)|float|float16|double|bfloat16|string)\)")


def create_session(
    ort: Any, path: Path, config: Any, providers: list[Provider], num_threads: int, options: Mapping[str, str]
) -> Any:
    """A session for a model. `num_threads` is the instance's share of the cores, used unless the
    configuration sets a number; `options` are --backend-config.

    Raises: EngineError.
    """
    settings = _options(ort, config, num_threads, options)
    try:
        return ort.InferenceSession(str(path), settings, providers=providers)
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise internal(f"onnx runtime error: {error}") from error


def inspect(ort: Any, path: Path) -> Any:
    """A session for reading its tensors: nothing is optimized."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(str(path), settings, providers=[CPU])
    except Exception as error:
        raise internal(f"onnx runtime error: {error}") from error


def has_fixed_shapes(ort: Any, path: Path) -> bool:
    """Whether every axis of every input has a fixed size, batch axes included. Raises: EngineError."""
    return all(-1 not in tensor.dims for tensor in tensors(inspect(ort, path).get_inputs()))


def _options(ort: Any, config: Any, num_threads: int, backend_options: Mapping[str, str]) -> Any:
    parameters = Parameters(config)
    settings = ort.SessionOptions()
    level = _LEVELS.get(config.optimization.graph.level, "ORT_ENABLE_ALL")
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    mode = parameters.number("execution_mode")
    if mode not in (0, 1):
        raise invalid(
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} ."
        )
    settings.execution_mode = ort.ExecutionMode.ORT_PARALLEL if mode else ort.ExecutionMode.ORT_SEQUENTIAL
    for key, attribute, default in (
        ("intra_op_thread_count", "intra_op_num_threads", num_threads),
        ("inter_op_thread_count", "inter_op_num_threads", 0),
    ):
        count = parameters.number(key) or int(backend_options.get(key, 0)) or default
        if count > 0:
            setattr(settings, attribute, count)
    if parameters.text("enable_mem_arena"):
        settings.enable_cpu_mem_arena = parameters.flag("enable_mem_arena")
    if parameters.text("enable_mem_pattern"):
        settings.enable_mem_pattern = parameters.flag("enable_mem_pattern")
    for entry in _SESSION_ENTRIES:
        if value := parameters.text(entry):
            settings.add_session_config_entry(entry, value)
    # Threads without work must not burn a core (onnxruntime's spin by default).
    settings.add_session_config_entry("session.intra_op.allow_spinning", parameters.text("allow_spinning", "0"))
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return settings


def tensors(nodes: Any) -> list[FileTensor]:
    """A session's inputs or outputs; a size without a number is -1.

    Raises: EngineError for a node that is not a tensor.
    """
    declared = []
    for node in nodes:
        if (match := _TENSOR.fullmatch(node.type)) is None:
            raise internal(f"'{node.name}' is {node.type}, which no datatype of the protocol is")
        dims = tuple(size if isinstance(size, int) else -1 for size in node.shape)
        declared.append(FileTensor(node.name, datatype_of_name(match[1]), dims))
    return declared


def onnx_file(config: Any, version_directory: Path) -> Path:
    """The model's file; a directory contains `model.onnx` and its external weights."""
    path = model_file(config, version_directory, "model.onnx")
    return path / "model.onnx" if path.is_dir() else path


def file_tensors(path: Path, default_max_batch_size: int) -> FileTensors:
    """The tensors that a model's file declares. Raises: EngineError."""
    session = inspect(library("onnxruntime", "onnx"), path)
    return FileTensors(tensors(session.get_inputs()), tensors(session.get_outputs()), default_max_batch_size)


def check(config: Any, session: Any) -> None:
    """Compare a configuration with the model. Raises: EngineError with Triton's text where they differ."""
    signature, model = ModelSignature.of(config), config.name
    inputs = {tensor.name: tensor for tensor in tensors(session.get_inputs())}
    defaults = {tensor.name: tensor for tensor in tensors(session.get_overridable_initializers())}
    outputs = {tensor.name: tensor for tensor in tensors(session.get_outputs())}
    required = [tensor for tensor in signature.inputs if tensor.name not in defaults]
    if len(required) != len(inputs):
        raise invalid(
            f"unable to load model '{model}', configuration expects {len(required)} inputs, "
            f"model provides {len(inputs)}"
        )
    _compare("input", signature.inputs, inputs | defaults, signature.max_batch_size, model)
    _compare("output", tuple(signature.output_by_name.values()), outputs, signature.max_batch_size, model)


def _compare(
    what: str, configured: Sequence[TensorSpec], provided: Mapping[str, FileTensor], max_batch_size: int, model: str
) -> None:
    for tensor in configured:
        declared = provided.get(tensor.name)
        if declared is None:
            allowed = ", ".join(sorted(provided))
            raise invalid(f"unexpected inference {what} '{tensor.name}', allowed {what}s are: {allowed}")
        if declared.datatype != tensor.datatype:
            raise invalid(
                f"unable to load model '{model}', configuration expects datatype TYPE_{_config_name(tensor.datatype)} "
                f"for {what} '{tensor.name}', model provides TYPE_{_config_name(declared.datatype)}"
            )
        if declared.dims and tensor.dims is not None:
            _compare_dims(tensor.name, declared.dims, tensor.dims, max_batch_size, model)


def _compare_dims(name: str, declared: tuple[int, ...], dims: tuple[int, ...], max_batch_size: int, model: str) -> None:
    start = f"model '{model}', tensor '{name}': "
    if max_batch_size and declared[0] != -1:
        raise invalid(
            f"{start}for the model to support batching the shape should have at least 1 dimension and the first "
            f"dimension must be -1; but shape expected by the model is {_shape(declared)}"
        )
    full = (-1, *dims) if max_batch_size else dims
    if len(full) == len(declared) and all(has in (-1, want) for has, want in zip(declared, full, strict=True)):
        return
    expects = (
        f"{start}the model expects {len(declared)} dimensions (shape {_shape(declared)}) but the model configuration "
    )
    if max_batch_size:
        raise invalid(
            f"{expects}specifies {len(full)} dimensions (an initial batch dimension because max_batch_size > 0 "
            f"followed by the explicit tensor shape, making complete shape {_shape(full)})"
        )
    raise invalid(f"{expects}specifies {len(full)} dimensions (shape {_shape(full)})")


def _shape(dims: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _config_name(datatype: str) -> str:
    return "STRING" if datatype == "BYTES" else datatype
