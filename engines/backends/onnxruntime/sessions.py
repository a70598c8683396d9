"""Sessions of onnxruntime, made as a configuration asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.backends.config_completion import Found
from engines.backends.onnxruntime.providers import CPU, Provider
from engines.backends.signature import Parameters
from engines.core.errors import internal, invalid

# Triton's graph levels: what is set is how much it is optimized less, or more.
_LEVELS = {-1: "ORT_ENABLE_BASIC", 1: "ORT_ENABLE_EXTENDED", 2: "ORT_DISABLE_ALL"}
_SESSION_ENTRIES = ("session.use_device_allocator_for_initializers",)
_DATATYPES = {
    f"tensor({name})": datatype
    for name, datatype in (
        *((name, name.upper()) for name in ("bool", "uint8", "uint16", "uint32", "uint64")),
        *((name, name.upper()) for name in ("int8", "int16", "int32", "int64")),
        *(("float16", "FP16"), ("float", "FP32"), ("double", "FP64"), ("bfloat16", "BF16"), ("string", "BYTES")),
    )
}


def make(
    ort: Any, path: Path, config: Any, providers: list[Provider], num_threads: int, options: Mapping[str, str]
) -> Any:
    """A session for a model. `num_threads` is the instance's share of the cores, used where nobody says another
    number; `options` are --backend-config.

    Raises: EngineError.
    """
    settings = _options(ort, config, num_threads, options)
    try:
        return ort.InferenceSession(str(path), settings, providers=providers)
    except Exception as error:  # onnxruntime has an exception class for each of its codes, with no base of their own
        raise internal(f"onnx runtime error: {error}") from error


def inspect(ort: Any, path: Path) -> Any:
    """A session that is only asked what it has: nothing is optimized."""
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(str(path), settings, providers=[CPU])
    except Exception as error:
        raise internal(f"onnx runtime error: {error}") from error


def has_fixed_shapes(ort: Any, path: Path) -> bool:
    """Whether each input of a model has one shape, its batch axis too. Raises: EngineError."""
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
    # A request that waits for the next one must not burn a core (onnxruntime's threads spin by default).
    settings.add_session_config_entry("session.intra_op.allow_spinning", parameters.text("allow_spinning", "0"))
    settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return settings


def tensors(nodes: Any) -> list[Found]:
    """A session's inputs or outputs; a size that has a name or none is -1.

    Raises: EngineError for what is no tensor.
    """
    found = []
    for node in nodes:
        if node.type not in _DATATYPES:
            raise internal(f"'{node.name}' is {node.type}, which no datatype of the protocol is")
        dims = tuple(size if isinstance(size, int) else -1 for size in node.shape)
        found.append(Found(node.name, _DATATYPES[node.type], dims))
    return found
