"""What Triton refuses of instance groups, once they are normalised.

Source: Triton core `model_config_utils.cc` ValidateInstanceGroup.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.repository.config.problems import ConfigError
from gateway.protocol.protobuf import Message


def check_instance_groups(config: Message, gpus: Sequence[int] = ()) -> None:
    """Raises: ConfigError where a group asks for devices that are not there, or contradicts itself."""
    if config.HasField("ensemble_scheduling"):
        return
    for group in config.instance_group:
        who = f"instance group {group.name} of model {config.name}"
        if group.kind == group.KIND_GPU:
            _check_gpus(group.gpus, gpus, who)
        elif group.gpus:
            kind = "KIND_MODEL" if group.kind == group.KIND_MODEL else "KIND_CPU"
            raise _wrong(f"{who} has kind {kind} but specifies one or more GPUs", "gpus")
        if group.profile:
            raise _wrong(
                f"{who} and platform {config.platform}specifies profile field which is only supported for "
                "TensorRT models",
                "profile",
            )


def _check_gpus(wanted: Sequence[int], there: Sequence[int], who: str) -> None:
    if not wanted:
        raise _wrong(f"{who} has kind KIND_GPU but {'specifies no GPUs' if there else 'no GPUs are available'}", "kind")
    for gpu in wanted:
        if gpu not in there:
            text = f"specifies invalid or unsupported gpu id {gpu}. GPUs of this machine are: "
            raise _wrong(f"{who} {text}{', '.join(map(str, there)) or 'none'}", "gpus")


def _wrong(message: str, field: str) -> ConfigError:
    return ConfigError(message, "instance_group", field)
