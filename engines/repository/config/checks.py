"""Triton's errors for a configuration before the model is loaded.

Source: Triton core `model_config_utils.cc` ValidateModelConfig. Its checks of inputs and outputs follow when the model
has completed them: `tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.repository.config.defaults import BACKENDS_WITH_A_PLATFORM, ENSEMBLE, PLATFORMS
from engines.repository.config.ensembles import check_ensemble
from engines.repository.config.parser import require
from engines.repository.config.sequences import check_sequence_batching
from gateway.protocol.protobuf import Message


def check(config: Message) -> None:
    """Raises: ConfigError for the first thing that is wrong, in Triton's order."""
    name = config.name
    require(name, "model configuration must specify 'name'")
    _check_backend(config)
    require(config.max_batch_size >= 0, f"'max_batch_size' must be non-negative value for {name}", "max_batch_size")
    require(config.HasField("version_policy"), f"must specify 'version policy' for {name}")
    if config.HasField("dynamic_batching"):
        _check_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        check_sequence_batching(config)
    if config.HasField("ensemble_scheduling"):
        check_ensemble(config)
    else:
        text = f"ensemble scheduling must be set for ensemble {name} whose platform is {ENSEMBLE}"
        require(config.platform != ENSEMBLE, text, "platform")
    require(
        not (config.model_transaction_policy.decoupled and config.response_cache.enable),
        f"Response Cache does not currently support model {name} with 'decoupled' transaction policy. "
        "Please disable the response cache.",
        "response_cache",
    )
    # Triton loads a model with equal names of tensors, and no request ever fits it.
    for kind, tensors in (("input", config.input), ("output", config.output)):
        seen: set[str] = set()
        for tensor in tensors:
            text = f"model {kind} '{tensor.name}' is specified more than once for {name}"
            require(tensor.name not in seen, text, kind, tensor.name)
            seen.add(tensor.name)
    require(
        not config.HasField("model_repository_agents"),
        f"model repository agents are not supported; take them out of the configuration of {name}",
        "model_repository_agents",
    )


def _check_backend(config: Message) -> None:
    backend, platform = config.backend, config.platform
    text = f"unexpected platform type '{platform}' for {config.name}"
    require(backend or platform == ENSEMBLE, text, "platform")
    text = f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type"
    require(not backend or platform != ENSEMBLE, text, "backend")
    is_pair = backend not in BACKENDS_WITH_A_PLATFORM or PLATFORMS.get(platform) == backend
    require(is_pair, f"unexpected 'platform' and 'backend' pair, got:{platform}, {backend}", "platform")


def _check_dynamic_batching(config: Message) -> None:
    def check(holds: object, text: str, field: str) -> None:
        require(holds, f"{text} for {config.name}", "dynamic_batching", field)

    batching = config.dynamic_batching
    levels = batching.priority_levels
    for size in batching.preferred_batch_size:
        check(size > 0, "dynamic batching preferred size must be positive", "preferred_batch_size")
        text = "dynamic batching preferred size must be <= max batch size"
        check(size <= config.max_batch_size, text, "preferred_batch_size")
    if levels:
        text = f"default priority level must be in range [1, {levels}]"
        check(1 <= batching.default_priority_level <= levels, text, "default_priority_level")
        text = f"priority queue policy must have priority level in range [1, {levels}]"
        check(all(1 <= level <= levels for level in batching.priority_queue_policy), text, "priority_queue_policy")
    # Responses in the order of their requests leave no room for priorities, nor for requests that are put off.
    if batching.preserve_ordering:
        text = "Only one priority level is allowed when 'preserve_ordering' is true"
        check(levels <= 1, text, "priority_levels")
        text = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
        for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
            delays = policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY
            check(not delays, text, "timeout_action")


def check_instance_groups(config: Message, gpus: Sequence[int] = ()) -> None:
    """Raises: ConfigError if a group names missing devices, or contradicts itself."""
    if config.HasField("ensemble_scheduling"):
        return
    for group in config.instance_group:
        who = f"instance group {group.name} of model {config.name}"
        if group.kind == group.KIND_GPU:
            text = f"{who} has kind KIND_GPU but {'specifies no GPUs' if gpus else 'no GPUs are available'}"
            require(group.gpus, text, "instance_group", "kind")
            for gpu in group.gpus:
                there = ", ".join(map(str, gpus)) or "none"
                text = f"{who} specifies invalid or unsupported gpu id {gpu}. GPUs of this machine are: {there}"
                require(gpu in gpus, text, "instance_group", "gpus")
        else:
            kind = "KIND_MODEL" if group.kind == group.KIND_MODEL else "KIND_CPU"
            text = f"{who} has kind {kind} but specifies one or more GPUs"
            require(not group.gpus, text, "instance_group", "gpus")
        text = (
            f"{who} and platform {config.platform}specifies profile field which is only supported for TensorRT models"
        )
        require(not group.profile, text, "instance_group", "profile")
