"""All instances of a model version: started together, stopped together."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from engines.core.calls import Submit
from engines.core.errors import invalid
from engines.instances.host_requests import CustomMetricsInterface, HostRequests, ModelControl
from engines.instances.instance import InstancePlan, ProcessInstance
from engines.instances.model_process import ModelProcess, ProcessLimits
from engines.instances.process import interpreter_for
from engines.repository.states import ModelSpec
from engines.scheduling.interfaces import Instance

EXECUTION_TIMEOUT_PARAMETER = "EXECUTION_TIMEOUT_SECONDS"
MEMORY_PARAMETER = "MAX_MEMORY_MB"
# The devices of each instance as JSON: clients read it in the served configuration.
PLACEMENT_PARAMETER = "PLACEMENT"


class InstanceSet:
    """The running instances. `config` is the completed configuration."""

    def __init__(self, config: Any, instances: list[ProcessInstance], processes: list[ModelProcess]) -> None:
        self.config = config
        self.instances: list[Instance] = [*instances]
        self.processes = processes

    def forget(self, state_key: str) -> None:
        for process in self.processes:
            for instance in process.instances:
                instance.forget(state_key)

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        return [process.pid for process in self.processes if process.pid is not None]

    async def stop(self) -> None:
        """End all processes; open calls fail as UNAVAILABLE."""
        await asyncio.gather(*(process.stop() for process in self.processes))


async def start(
    spec: ModelSpec,
    *,
    backend_options: Mapping[str, str] | None = None,
    infer: Submit,
    control: ModelControl,
    metrics: CustomMetricsInterface,
    on_change: Callable[[Instance], None] = lambda instance: None,
    limits: ProcessLimits | None = None,
    completes: bool = True,
) -> InstanceSet:
    """Start a model's instances, and wait until all have loaded it. The instance groups of its configuration are
    complete.

    `infer` runs the models' own inferences; `on_change` is called when an instance becomes available or unavailable;
    `completes` lets the backend complete the configuration. Raises: EngineError if the model does not load; then
    nothing of it runs.
    """
    config = type(spec.config)()
    config.CopyFrom(spec.config)
    timeout_seconds = _number(config, EXECUTION_TIMEOUT_PARAMETER)
    memory_mb = _number(config, MEMORY_PARAMETER)
    limits = limits or ProcessLimits()
    instances = [
        ProcessInstance(
            each,
            HostRequests(each.name, infer, control, metrics),
            execution_timeout_seconds=timeout_seconds,
            memory_limit_bytes=None if memory_mb is None else int(memory_mb * (1 << 20)),
        )
        for each in instance_plans(config)
    ]
    interpreter = interpreter_for(config, spec.directory, len(instances))
    fields = {
        "backend": config.backend,
        "model": spec.name,
        "version": spec.version,
        "directory": str(spec.directory),
        "version_directory": str(spec.version_directory),
        "config": config.SerializeToString(),
        "options": dict(backend_options or {}),
    }
    processes = [ModelProcess(instances[0].name, interpreter, fields, limits, on_change)]
    try:
        completed = await processes[0].load(instances, completes=completes)
        if len(processes[0].instances) < len(instances):
            fields["config"] = completed
            processes += [ModelProcess(each.name, interpreter, fields, limits, on_change) for each in instances[1:]]
        async with asyncio.TaskGroup() as group:
            group.create_task(processes[0].begin())
            for process, instance in zip(processes[1:], instances[1:], strict=False):
                group.create_task(_load(process, instance))
    except BaseException as error:
        for process in processes:
            with contextlib.suppress(Exception):
                await process.stop()
        if isinstance(error, BaseExceptionGroup):
            raise error.exceptions[0] from None
        raise
    config = type(spec.config).FromString(completed)
    placements = {instance.key: json.loads(instance.placement) for instance in instances if instance.placement}
    if placements:
        config.parameters[PLACEMENT_PARAMETER].string_value = json.dumps(placements)
    return InstanceSet(config, instances, processes)


async def _load(process: ModelProcess, instance: ProcessInstance) -> None:
    await process.load([instance], completes=False)
    await process.begin()


def _number(config: Any, parameter: str) -> float | None:
    """A parameter that is a positive number; None if it is not set, or 0. Raises: EngineError."""
    if parameter not in config.parameters:
        return None
    text = config.parameters[parameter].string_value
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise invalid(f"the parameter {parameter} of model '{config.name}' is a positive number, not '{text}'")
    return number or None


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


def instance_plans(config: Any) -> list[InstancePlan]:
    """The instances of a configuration whose instance groups are complete, in order."""
    kinds = config.DESCRIPTOR.fields_by_name["instance_group"].message_type.enum_types_by_name["Kind"].values_by_number
    plans = []
    for group in config.instance_group:
        kind = kinds[group.kind].name
        devices = list(group.gpus) if kind == "KIND_GPU" else [0]
        plans += [
            InstancePlan(f"{group.name}_{number}", kind, device) for number in range(group.count) for device in devices
        ]
    return plans
