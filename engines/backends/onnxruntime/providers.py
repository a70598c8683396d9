"""The execution providers of a session with their options, and the cache of compiled CoreML models."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engines.backends.coreml.disk_cache import cache_directory, digest, machine
from engines.backends.model_config import Parameters
from engines.core.errors import invalid

CPU, CUDA, TENSORRT, OPENVINO, COREML = (
    f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "OpenVINO", "CoreML")
)
Provider = tuple[str, dict[str, str]]

# Accelerators as a configuration names them (optimization.execution_accelerators).
_ACCELERATORS = {"tensorrt": TENSORRT, "cuda": CUDA, "openvino": OPENVINO, "coreml": COREML}

# Parameters of a model that are options of the CoreML provider (onnxruntime, CoreML provider). Its default format,
# "NeuralNetwork", supports fewer operators and no FP16.
_ONLY_STATIC = "RequireStaticInputShapes"
_COREML_OPTIONS = (
    *("ModelFormat", "MLComputeUnits", _ONLY_STATIC, "EnableOnSubgraphs", "SpecializationStrategy"),
    *("ProfileComputePlan", "AllowLowPrecisionAccumulationOnGPU", "ModelCacheDirectory"),
)
_COREML_DEFAULTS = {"ModelFormat": "MLProgram", "MLComputeUnits": "ALL"}
# Options of the CUDA provider that Triton takes as parameters of a model.
_CUDA_OPTIONS = ("cudnn_conv_algo_search", "gpu_mem_limit", "arena_extend_strategy", "do_copy_in_default_stream")
_CUDA_WORDS = {
    "cudnn_conv_algo_search": {"0": "EXHAUSTIVE", "1": "HEURISTIC", "2": "DEFAULT"},
    "arena_extend_strategy": {"0": "kNextPowerOfTwo", "1": "kSameAsRequested"},
}
_TENSORRT_PRECISIONS = {"FP32": {}, "FP16": {"trt_fp16_enable": "1"}, "BF16": {"trt_bf16_enable": "1"},
                        "INT8": {"trt_int8_enable": "1"}}  # fmt: skip


def choose(
    available: list[str], kind: str, device_id: int, config: Any, is_static: Callable[[], bool] = lambda: True
) -> list[Provider]:
    """The providers of a session by priority; the CPU is the last.

    `EXECUTION_PROVIDERS` names them. Otherwise they are the configured accelerators that this onnxruntime has; without
    any, CUDA or CoreML by the instance's kind. `metal` and `neural_engine` select CoreML and its devices.

    By the kind alone, CoreML gets only models whose inputs have fixed shapes (`is_static`), and of them the operators
    with fixed shapes: with open ones, the batch axis included, it is slow, splits the model into many pieces, or fails
    (onnxruntime, CoreML provider, RequireStaticInputShapes). A configuration that names CoreML gets it for any model.

    Raises: EngineError for a named provider that this onnxruntime lacks.
    """
    parameters = Parameters(config)
    named = parameters.text("EXECUTION_PROVIDERS")
    chosen: list[Provider]
    if named:
        names = [name.strip() for name in named.split(",") if name.strip()]
        for name in names:
            if name not in available:
                raise invalid(f"this onnxruntime has no {name}: it has {', '.join(available)}")
        chosen = [_bare(name) for name in names]
    else:
        chosen = [(name, options) for name, options in _accelerators(config, kind) if name in available]
        wants_coreml = parameters.flag("metal") or parameters.flag("neural_engine")
        if not chosen and (kind == "KIND_GPU" or wants_coreml):
            chosen = [_bare(name) for name in (CUDA, COREML) if name in available][:1]
            if chosen == [_bare(COREML)] and not wants_coreml:
                only_static = parameters.text(_ONLY_STATIC, "1")
                chosen = [(COREML, {_ONLY_STATIC: only_static})] if only_static != "1" or is_static() else []
    selected: dict[str, dict[str, str]] = {}
    for name, options in chosen:
        selected.setdefault(name, {}).update({**_own_options(name, parameters, device_id), **options})
    if TENSORRT in selected and CUDA in available:
        selected.setdefault(CUDA, _own_options(CUDA, parameters, device_id))  # runs operators that TensorRT lacks
    selected.setdefault(CPU, {})
    return list(selected.items())


def _bare(name: str) -> Provider:
    return name, {}


def _accelerators(config: Any, kind: str) -> list[Provider]:
    wanted = config.optimization.execution_accelerators
    groups = list(wanted.gpu_execution_accelerator) if kind != "KIND_CPU" else []
    selected = []
    for accelerator in [*groups, *wanted.cpu_execution_accelerator]:
        name = _ACCELERATORS.get(accelerator.name)
        if name is None:
            raise invalid(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        options = dict(accelerator.parameters)
        selected.append((name, _tensorrt_options(options) if name == TENSORRT else options))
    return selected


def _tensorrt_options(parameters: dict[str, str]) -> dict[str, str]:
    """Triton's names to onnxruntime's: `precision_mode` becomes a flag, the others get `trt_` before them."""
    options: dict[str, str] = {}
    for key, value in parameters.items():
        if key == "precision_mode":
            if value not in _TENSORRT_PRECISIONS:
                raise invalid(f"unsupported precision mode '{value}' is requested")
            options |= _TENSORRT_PRECISIONS[value]
        elif key == "max_workspace_size_bytes":
            options["trt_max_workspace_size"] = value
        else:
            options[key if key.startswith("trt_") else f"trt_{key}"] = value
    return options


def _own_options(name: str, parameters: Parameters, device_id: int) -> dict[str, str]:
    if name == COREML:
        options = {key: parameters.text(key) for key in _COREML_OPTIONS if parameters.text(key)}
        if parameters.flag("neural_engine"):
            options.setdefault("MLComputeUnits", "CPUAndNeuralEngine")
        elif parameters.flag("metal"):
            options.setdefault("MLComputeUnits", "CPUAndGPU")
        return _COREML_DEFAULTS | options
    if name in (CUDA, TENSORRT):
        options = {"device_id": str(device_id)}
        if name == CUDA:
            for key in _CUDA_OPTIONS:
                if value := parameters.text(key):
                    options[key] = _CUDA_WORDS.get(key, {}).get(value, value)
        return options
    return {}


def placement(session: Any) -> dict[str, Any]:
    """The placement of a session: `{"providers": [...], "nodes": {provider: {operator: count}}}`. `nodes` are those of
    the optimized graph, {} if this onnxruntime does not report them."""
    nodes: dict[str, Counter[str]] = {}
    report = getattr(session, "get_provider_graph_assignment_info", None)
    for subgraph in report() if report is not None else ():
        nodes.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return {"providers": session.get_providers(), "nodes": {name: dict(count) for name, count in nodes.items()}}


_log = logging.getLogger(__name__)

OPTION = "ModelCacheDirectory"
_SINCE = (1, 21)


@contextmanager
def cached(
    providers: list[Provider], path: Path, version: str, machine_name: Callable[[], str] = machine
) -> Iterator[list[Provider]]:
    """The providers, with a cache directory for CoreML's. Other processes that create a session of the same model wait
    until this one is ready, and load the compiled model.

    `version` is onnxruntime's; `machine_name` identifies the machine. External weights are beside the model's file: its
    whole directory counts as the model.
    """
    options = dict(providers).get(COREML)
    if options is None or OPTION in options or _release(version) < _SINCE:
        yield providers
        return
    ingredients = json.dumps([digest(path.parent), path.name, sorted(options.items()), version, machine_name()])
    folder = cache_directory().with_name("onnx-coreml") / hashlib.sha256(ingredients.encode()).hexdigest()[:32]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = folder.with_suffix(".lock").open("w")
    except OSError as error:
        _log.warning("what CoreML compiles is not kept: %s: %s", folder, error.strerror)
        yield providers
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield [(name, {**own, OPTION: str(folder)} if name == COREML else own) for name, own in providers]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])
