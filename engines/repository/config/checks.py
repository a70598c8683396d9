"""Triton's errors for a configuration before the model is loaded.

Source: Triton core `model_config_utils.cc` ValidateModelConfig. Its checks of inputs and outputs follow when the model
has completed them: `tensors`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engines.repository.config.defaults import BACKENDS_WITH_A_PLATFORM, ENSEMBLE, PLATFORMS
from engines.repository.config.ensembles import check_ensemble
from engines.repository.config.parser import ConfigError
from engines.repository.config.sequences import check_sequence_batching
from gateway.protocol.protobuf import Message


def check_dynamic_batching(config: Message) -> None:
    """Raises: ConfigError."""
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise _wrong_batching("dynamic batching preferred size must be positive", config, "preferred_batch_size")
        if size > config.max_batch_size:
            raise _wrong_batching(
                "dynamic batching preferred size must be <= max batch size", config, "preferred_batch_size"
            )
    if batching.priority_levels:
        _check_priorities(config)
    if batching.preserve_ordering:
        _check_ordering(config)


def _check_priorities(config: Message) -> None:
    batching = config.dynamic_batching
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise _wrong_batching(
            f"default priority level must be in range [1, {levels}]", config, "default_priority_level"
        )
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        text = f"priority queue policy must have priority level in range [1, {levels}]"
        raise _wrong_batching(text, config, "priority_queue_policy")


def _check_ordering(config: Message) -> None:
    """Responses in the order of their requests leave no room for priorities, nor for requests that are put off."""
    batching = config.dynamic_batching
    if batching.priority_levels > 1:
        text = "Only one priority level is allowed when 'preserve_ordering' is true"
        raise _wrong_batching(text, config, "priority_levels")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            text = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
            raise _wrong_batching(text, config, "timeout_action")


def _wrong_batching(text: str, config: Message, field: str) -> ConfigError:
    return ConfigError(f"{text} for {config.name}", "dynamic_batching", field)


def check_instance_groups(config: Message, gpus: Sequence[int] = ()) -> None:
    """Raises: ConfigError if a group names missing devices, or contradicts itself."""
    if config.HasField("ensemble_scheduling"):
        return
    for group in config.instance_group:
        who = f"instance group {group.name} of model {config.name}"
        if group.kind == group.KIND_GPU:
            _check_gpus(group.gpus, gpus, who)
        elif group.gpus:
            kind = "KIND_MODEL" if group.kind == group.KIND_MODEL else "KIND_CPU"
            raise _wrong_group(f"{who} has kind {kind} but specifies one or more GPUs", "gpus")
        if group.profile:
            raise _wrong_group(
                f"{who} and platform {config.platform}specifies profile field which is only supported for "
                "TensorRT models",
                "profile",
            )


def _check_gpus(wanted: Sequence[int], there: Sequence[int], who: str) -> None:
    if not wanted:
        raise _wrong_group(
            f"{who} has kind KIND_GPU but {'specifies no GPUs' if there else 'no GPUs are available'}", "kind"
        )
    for gpu in wanted:
        if gpu not in there:
            text = f"specifies invalid or unsupported gpu id {gpu}. GPUs of this machine are: "
            raise _wrong_group(f"{who} {text}{', '.join(map(str, there)) or 'none'}", "gpus")


def _wrong_group(message: str, field: str) -> ConfigError:
    return ConfigError(message, "instance_group", field)


def check(config: Message) -> None:
    """Raises: ConfigError for the first thing that is wrong, in Triton's order."""
    if not config.name:
        raise ConfigError("model configuration must specify 'name'")
    _check_backend(config)
    if config.max_batch_size < 0:
        raise ConfigError(f"'max_batch_size' must be non-negative value for {config.name}", "max_batch_size")
    _check_version_policy(config)
    if config.HasField("dynamic_batching"):
        check_dynamic_batching(config)
    if config.HasField("sequence_batching"):
        check_sequence_batching(config)
    if config.HasField("ensemble_scheduling"):
        check_ensemble(config)
    elif config.platform == ENSEMBLE:
        raise ConfigError(
            f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE}", "platform"
        )
    _check_response_cache(config)
    _check_names(config)
    if config.HasField("model_repository_agents"):
        raise ConfigError(
            f"model repository agents are not supported; take them out of the configuration of {config.name}",
            "model_repository_agents",
        )


def _check_backend(config: Message) -> None:
    if not config.backend and config.platform != ENSEMBLE:
        raise ConfigError(f"unexpected platform type '{config.platform}' for {config.name}", "platform")
    if config.backend and config.platform == ENSEMBLE:
        raise ConfigError(
            f"Ensemble model '{config.name}' must have platform type '{ENSEMBLE}' and empty backend type", "backend"
        )
    if config.backend in BACKENDS_WITH_A_PLATFORM and PLATFORMS.get(config.platform) != config.backend:
        raise ConfigError(
            f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}", "platform"
        )


def _check_version_policy(config: Message) -> None:
    if not config.HasField("version_policy"):
        raise ConfigError(f"must specify 'version policy' for {config.name}")


def _check_response_cache(config: Message) -> None:
    if config.model_transaction_policy.decoupled and config.response_cache.enable:
        raise ConfigError(
            f"Response Cache does not currently support model {config.name} with 'decoupled' transaction policy. "
            "Please disable the response cache.",
            "response_cache",
        )


def _check_names(config: Message) -> None:
    """Tensors have distinct names: Triton loads a model with equal ones, and no request ever fits it."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        names = [tensor.name for tensor in tensors]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"model {kind} '{name}' is specified more than once for {config.name}", kind, name)
