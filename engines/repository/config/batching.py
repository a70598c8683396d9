"""What Triton refuses of dynamic batching.

Source: Triton core `model_config_utils.cc` ValidateModelConfig.
"""

from __future__ import annotations

from engines.repository.config.problems import ConfigError
from gateway.protocol.protobuf import Message


def check_dynamic_batching(config: Message) -> None:
    """Raises: ConfigError."""
    batching = config.dynamic_batching
    for size in batching.preferred_batch_size:
        if size <= 0:
            raise _wrong("dynamic batching preferred size must be positive", config, "preferred_batch_size")
        if size > config.max_batch_size:
            raise _wrong("dynamic batching preferred size must be <= max batch size", config, "preferred_batch_size")
    if batching.priority_levels:
        _check_priorities(config)
    if batching.preserve_ordering:
        _check_ordering(config)


def _check_priorities(config: Message) -> None:
    batching = config.dynamic_batching
    levels = batching.priority_levels
    if not 1 <= batching.default_priority_level <= levels:
        raise _wrong(f"default priority level must be in range [1, {levels}]", config, "default_priority_level")
    if not all(1 <= level <= levels for level in batching.priority_queue_policy):
        text = f"priority queue policy must have priority level in range [1, {levels}]"
        raise _wrong(text, config, "priority_queue_policy")


def _check_ordering(config: Message) -> None:
    """Responses in the order of their requests leave no room for priorities, nor for requests that are put off."""
    batching = config.dynamic_batching
    if batching.priority_levels > 1:
        text = "Only one priority level is allowed when 'preserve_ordering' is true"
        raise _wrong(text, config, "priority_levels")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            text = "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true"
            raise _wrong(text, config, "timeout_action")


def _wrong(text: str, config: Message, field: str) -> ConfigError:
    return ConfigError(f"{text} for {config.name}", "dynamic_batching", field)
