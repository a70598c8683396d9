"""What Triton derives for a configuration: the backend and its model's file, and the defaults.

Source: Triton core `model_config_utils.cc` AutoCompleteBackendFields, NormalizeModelConfig, NormalizeInstanceGroup,
SetDefaultInstanceCount; `constants.h`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.repository.config.parser import ConfigError
from gateway.protocol.protobuf import Message

ENSEMBLE = "ensemble"


@dataclass(frozen=True, slots=True)
class BackendNames:
    """A backend, its name as a platform in older configurations, and its model's file.

    `alternatives` are file names that this host's backend reads too: one that exists is the default if `filename` does
    not. `is_found_by` are the file names that select the backend if the configuration names none.
    """

    backend: str
    platform: str
    filename: str
    alternatives: tuple[str, ...] = ()
    is_found_by: tuple[str, ...] = ()


# In Triton's order; those after python are this host's own.
BACKENDS: tuple[BackendNames, ...] = (
    BackendNames("tensorflow", "tensorflow_savedmodel", "model.savedmodel", (), ("model.savedmodel",)),
    BackendNames("tensorflow", "tensorflow_graphdef", "model.graphdef", (), ("model.graphdef",)),
    BackendNames("tensorrt", "tensorrt_plan", "model.plan", (), ("model.plan",)),
    BackendNames("onnxruntime", "onnxruntime_onnx", "model.onnx", (), ("model.onnx",)),
    BackendNames("openvino", "", "model.xml", (), ("model.xml",)),
    BackendNames("pytorch", "pytorch_libtorch", "model.pt", ("model.pt2", "model.py"), ("model.pt", "model.pt2")),
    BackendNames("python", "", "model.py", (), ("model.py",)),
    BackendNames("coreml", "", "model.mlpackage", ("model.mlmodelc",), ("model.mlpackage", "model.mlmodelc")),
)
PLATFORMS: dict[str, str] = {names.platform: names.backend for names in BACKENDS if names.platform}
# Their platform must be the one of the table, as Triton has it.
BACKENDS_WITH_A_PLATFORM = frozenset(PLATFORMS.values())


def complete_backend(config: Message, name: str, directory: Path) -> None:
    """Fill in `name`, `backend`, `platform` and `default_model_filename` if they are missing. `directory` is the
    model's; the files of its first version determine the backend. Raises: ConfigError if they do not."""
    if not config.name:
        config.name = name
    files = _files_of_first_version(directory)
    names = _names(config, files)
    if names is not None:
        _fill_in(config, names, files)
    elif not (config.backend or config.platform or config.default_model_filename):
        _take_from_name(config, name)


def _files_of_first_version(directory: Path) -> frozenset[str]:
    try:
        versions = sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
        return frozenset(entry.name for entry in (directory / versions[0]).iterdir()) if versions else frozenset()
    except OSError:
        return frozenset()


def _names(config: Message, files: frozenset[str]) -> BackendNames | None:
    """The backend that the configuration means:

    1. it names the backend: the one of its platform, of its file name, of a file that is there, or the first;
    2. it names the platform alone;
    3. it names the file alone;
    4. it names nothing: a file that is there tells.
    """
    if config.backend:
        same = [names for names in BACKENDS if names.backend == config.backend]
        for names in same:
            if config.platform == names.platform or (
                not config.platform and config.default_model_filename == names.filename
            ):
                return names
        return _by_file(same, files) or (same[0] if same and same[0].backend != "tensorflow" else None)
    if config.platform:
        return next((names for names in BACKENDS if names.platform == config.platform), None)
    if config.default_model_filename:
        return next((names for names in BACKENDS if config.default_model_filename in names.is_found_by), None)
    return _by_file(BACKENDS, files)


def _by_file(candidates: tuple[BackendNames, ...] | list[BackendNames], files: frozenset[str]) -> BackendNames | None:
    return next((names for names in candidates if not files.isdisjoint(names.is_found_by)), None)


def _fill_in(config: Message, names: BackendNames, files: frozenset[str]) -> None:
    config.backend = config.backend or names.backend
    if not config.platform:
        config.platform = names.platform
    if not config.default_model_filename and not (names.backend == "pytorch" and config.runtime == "model.py"):
        there = [filename for filename in names.alternatives if filename in files]
        config.default_model_filename = there[0] if there and names.filename not in files else names.filename


def _take_from_name(config: Message, name: str) -> None:
    """A model named `x.backend` names its backend."""
    _, dot, backend = name.partition(".")
    if not dot:
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{name}' with no backend in model "
            "configuration. Expected model name of the form 'model.<backend_name>'."
        )
    config.backend = backend
    config.default_model_filename = f"model.{backend}"


SEQUENCE_IDLE_MICROSECONDS = 1_000_000
# Their instances share the cores well, so that Triton starts two on a CPU.
BACKENDS_WITH_TWO_INSTANCES = frozenset({"tensorflow", "onnxruntime"})

# Their models' code expects a CUDA GPU, as with Triton; on a Mac, a model that uses Metal configures KIND_GPU.
BACKENDS_OF_CUDA = frozenset({"python"})


def set_defaults(config: Message) -> None:
    """Defaults that do not depend on the machine: version policy, preferred batch sizes, idle time, optimization."""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    if config.HasField("dynamic_batching"):
        _prefer_full_batches(config.dynamic_batching.preferred_batch_size, config.max_batch_size)
    if config.HasField("sequence_batching"):
        batching = config.sequence_batching
        batching.max_sequence_idle_microseconds = batching.max_sequence_idle_microseconds or SEQUENCE_IDLE_MICROSECONDS
        if batching.HasField("oldest"):
            _prefer_full_batches(batching.oldest.preferred_batch_size, config.max_batch_size)
    if not config.HasField("ensemble_scheduling"):
        for memory in ("input_pinned_memory", "output_pinned_memory"):
            if not config.optimization.HasField(memory):
                getattr(config.optimization, memory).enable = True


def _prefer_full_batches(preferred: list[int], max_batch_size: int) -> None:
    if not preferred and max_batch_size > 0:
        preferred.append(max_batch_size)


def set_instance_groups(
    config: Message, gpus: Sequence[int] = (), *, is_metal: bool = sys.platform == "darwin"
) -> None:
    """Name, kind and count of each instance group; at least one group. `gpus` are the ids of this machine's devices,
    CUDA's or Metal's. KIND_AUTO becomes KIND_GPU if the named GPUs (any, if it names none) exist, else KIND_CPU."""
    if config.HasField("ensemble_scheduling"):
        return
    if not config.instance_group:
        group = config.instance_group.add(name=config.name)
        if is_metal and config.backend in BACKENDS_OF_CUDA:
            group.kind = group.KIND_CPU
    kinds = config.instance_group[0]
    for number, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{number}"
        if group.kind == kinds.KIND_AUTO:
            group.kind = kinds.KIND_GPU if gpus and set(group.gpus) <= set(gpus) else kinds.KIND_CPU
        if group.count < 1:
            are_two = group.kind == kinds.KIND_CPU and config.backend in BACKENDS_WITH_TWO_INSTANCES
            group.count = 2 if are_two else 1
        if group.kind == kinds.KIND_GPU and not group.gpus:
            group.gpus.extend(gpus)
