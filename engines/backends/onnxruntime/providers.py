"""Which execution providers a session gets, with their options, and what it then ran on which."""

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

# Parameters of a model that are options of the CoreML provider, by their own names (onnxruntime, CoreML provider).
# "NeuralNetwork" is its default format, which knows fewer operators and no FP16.
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
    """The providers of a session, the first that can run an operator running it; the CPU is always the last.

    `EXECUTION_PROVIDERS` names them outright. Else they are the accelerators that the configuration asks for and that
    this onnxruntime has; without any, by the instance's kind, CUDA or CoreML where they are there. `metal` and
    `neural_engine` ask for CoreML, and say where it may run.

    By the kind alone CoreML gets a model whose inputs have fixed shapes (`is_static`), and of it the operators that
    have: with open ones, a batch's too, it is slow, splits the model into many pieces, or fails (onnxruntime, CoreML
    provider, RequireStaticInputShapes). A configuration that asks for CoreML gets it for any model.
    Raises: EngineError where one is named that this onnxruntime does not have.
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
    found: dict[str, dict[str, str]] = {}
    for name, options in chosen:
        found.setdefault(name, {}).update({**_own_options(name, parameters, device_id), **options})
    if TENSORRT in found and CUDA in available:
        found.setdefault(CUDA, _own_options(CUDA, parameters, device_id))  # runs what TensorRT cannot
    found.setdefault(CPU, {})
    return list(found.items())


def _bare(name: str) -> Provider:
    return name, {}


def _accelerators(config: Any, kind: str) -> list[Provider]:
    wanted = config.optimization.execution_accelerators
    groups = list(wanted.gpu_execution_accelerator) if kind != "KIND_CPU" else []
    found = []
    for accelerator in [*groups, *wanted.cpu_execution_accelerator]:
        name = _ACCELERATORS.get(accelerator.name)
        if name is None:
            raise invalid(f"unknown Execution Accelerator '{accelerator.name}' is requested")
        options = dict(accelerator.parameters)
        found.append((name, _tensorrt_options(options) if name == TENSORRT else options))
    return found


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
    """What a session runs where: `{"providers": [...], "nodes": {provider: {operator: how many}}}`. `nodes` are those
    of the optimized graph, and {} where this onnxruntime does not tell."""
    nodes: dict[str, Counter[str]] = {}
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    for subgraph in tell() if tell is not None else ():
        nodes.setdefault(subgraph.ep_name, Counter()).update(node.op_type for node in subgraph.get_nodes())
    return {"providers": session.get_providers(), "nodes": {name: dict(count) for name, count in nodes.items()}}


_log = logging.getLogger(__name__)

OPTION = "ModelCacheDirectory"
_SINCE = (1, 21)


@contextmanager
def cached(
    providers: list[Provider], path: Path, version: str, here: Callable[[], str] = machine
) -> Iterator[list[Provider]]:
    """The providers, CoreML's with a folder for this model where it has none. Other processes that make a session of
    the same model wait until this one is made, and load what it has compiled.

    `version` is onnxruntime's, `here` names the machine. External weights lie beside the model's file: its whole
    folder counts as the model.
    """
    options = dict(providers).get(COREML)
    if options is None or OPTION in options or _release(version) < _SINCE:
        yield providers
        return
    ingredients = json.dumps([digest(path.parent), path.name, sorted(options.items()), version, here()])
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
