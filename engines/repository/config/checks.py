"""What Triton refuses of a configuration before it loads the model, in its words.

Source: Triton core `model_config_utils.cc` ValidateModelConfig. Its checks of inputs and outputs follow when the model
has completed them: `tensors`.
"""

from __future__ import annotations

from engines.repository.config.backends import BACKENDS_WITH_A_PLATFORM, ENSEMBLE, PLATFORMS
from engines.repository.config.batching import check_dynamic_batching
from engines.repository.config.ensembles import check_ensemble
from engines.repository.config.problems import ConfigError
from engines.repository.config.sequences import check_sequence_batching
from gateway.protocol.protobuf import Message


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
    """Two tensors of a name cannot be told apart: Triton loads such a model, and no request ever fits it."""
    for kind, tensors in (("input", config.input), ("output", config.output)):
        names = [tensor.name for tensor in tensors]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"model {kind} '{name}' is specified more than once for {config.name}", kind, name)
