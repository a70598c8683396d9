"""Triton's defaults of a configuration.

Source: Triton core `model_config_utils.cc` NormalizeModelConfig, NormalizeInstanceGroup, SetDefaultInstanceCount.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.protocol.protobuf import Message

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
    CUDA's or Metal's.

    KIND_AUTO becomes KIND_GPU if the named GPUs (any, if it names none) exist, else KIND_CPU.
    """
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
