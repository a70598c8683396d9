"""Which instances a model has: from its instance groups, and from what there is to run on.

Source: Triton core `src/model_config_utils.cc`, NormalizeInstanceGroup and ValidateInstanceGroup.
"""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from engines.core.errors import EngineError, invalid

# Backends whose instances run on the CPU where nothing else is said.
_CPU_BACKENDS = {"python"}


@dataclass(frozen=True, slots=True)
class InstancePlan:
    """One instance. Those of one group on several GPUs share their names, as in Triton."""

    name: str
    kind: str  # KIND_CPU, KIND_GPU or KIND_MODEL
    device_id: int = 0


@cache
def count_gpus() -> int:
    """The GPUs of this machine that may be used: CUDA's, or the one of an Apple chip."""
    if sys.platform == "darwin":
        return 1 if platform.machine() == "arm64" else 0
    present = sum(1 for _ in Path("/proc/driver/nvidia/gpus").glob("*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    return min(present, sum(1 for device in visible.split(",") if device.strip() not in ("", "-1")))


def fill_in_groups(config: Any, num_gpus: int) -> None:
    """Give each instance group of a configuration a name, a kind, a count and its GPUs; one group where there is none.

    Raises: EngineError where a group wants what is not there.
    """
    kinds = config.DESCRIPTOR.fields_by_name["instance_group"].message_type.enum_types_by_name["Kind"].values_by_name
    if not config.instance_group:
        name = "KIND_CPU" if config.backend in _CPU_BACKENDS else "KIND_AUTO"
        config.instance_group.add(name=config.name, kind=kinds[name].number)
    for index, group in enumerate(config.instance_group):
        group.name = group.name or f"{config.name}_{index}"
        if group.kind == kinds["KIND_AUTO"].number:
            is_gpu = num_gpus > 0 and all(device < num_gpus for device in group.gpus)
            group.kind = kinds["KIND_GPU" if is_gpu else "KIND_CPU"].number
            if not is_gpu:
                del group.gpus[:]
        group.count = max(1, group.count)
        is_gpu = group.kind == kinds["KIND_GPU"].number
        if is_gpu and not group.gpus:
            group.gpus.extend(range(num_gpus))
        if failure := _failure(config.name, group, is_gpu, num_gpus):
            raise failure


def plan(config: Any) -> list[InstancePlan]:
    """The instances of a configuration whose groups are filled in, in order."""
    kinds = config.DESCRIPTOR.fields_by_name["instance_group"].message_type.enum_types_by_name["Kind"].values_by_number
    plans = []
    for group in config.instance_group:
        kind = kinds[group.kind].name
        devices = list(group.gpus) if kind == "KIND_GPU" else [0]
        plans += [
            InstancePlan(f"{group.name}_{number}", kind, device) for number in range(group.count) for device in devices
        ]
    return plans


def _failure(model: str, group: Any, is_gpu: bool, num_gpus: int) -> EngineError | None:
    about = f"instance group {group.name} of model {model}"
    if not is_gpu:
        if group.gpus and group.kind == group.KIND_MODEL:
            return invalid(f"{about} has kind KIND_MODEL but specifies one or more GPUs")
        return invalid(f"{about} has kind KIND_CPU but specifies one or more GPUs") if group.gpus else None
    if not num_gpus:
        return invalid(f"{about} has kind KIND_GPU but no GPUs are available")
    for device in group.gpus:
        if device >= num_gpus:
            there = ", ".join(map(str, range(num_gpus)))
            return invalid(f"{about} specifies invalid or unsupported gpu id {device}. GPUs that are here: {there}")
    return None
