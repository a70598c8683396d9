"""A model's configuration with a candidate's settings, as Triton's JSON and as config.pbtxt. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engines.analyze.models import AnalyzeError, Candidate
from gateway.protocol.protobuf import message

Config = Mapping[str, Any]


def candidate_of(config: Config) -> Candidate:
    """The settings that a configuration has now."""
    batcher = config.get("dynamic_batching")
    groups = config.get("instance_group") or [{}]
    return Candidate(
        instances=max(1, int(groups[0].get("count", 1))),
        max_batch_size=int(config.get("max_batch_size", 0)),
        queue_delay_us=None if batcher is None else int(batcher.get("max_queue_delay_microseconds", 0)),
        preferred=() if batcher is None else tuple(int(size) for size in batcher.get("preferred_batch_size", ())),
    )


def check_kind(config: Config) -> None:
    """Only models whose requests stand alone, and are answered once, can be measured. Raises: AnalyzeError."""
    name = config.get("name")
    if "sequence_batching" in config:
        raise AnalyzeError(f"{name} is a sequence model: its requests do not stand alone, so they cannot be swept here")
    if config.get("model_transaction_policy", {}).get("decoupled"):
        raise AnalyzeError(
            f"{name} is decoupled: it answers a request as often as it likes, which infer cannot measure"
        )


def has_settings(config: Config) -> bool:
    """Whether the model has settings to sweep; an ensemble has none."""
    return "ensemble_scheduling" not in config


def with_candidate(config: Config, candidate: Candidate) -> dict[str, Any]:
    """The configuration with a candidate's settings, all else as it was."""
    changed = dict(config)
    changed["max_batch_size"] = candidate.max_batch_size
    groups = config.get("instance_group") or [{}]
    changed["instance_group"] = [{**group, "count": candidate.instances} for group in groups]
    changed.pop("dynamic_batching", None)
    if candidate.queue_delay_us is not None:
        batcher = dict(config.get("dynamic_batching") or {})
        batcher["max_queue_delay_microseconds"] = candidate.queue_delay_us
        batcher["preferred_batch_size"] = list(candidate.preferred)
        changed["dynamic_batching"] = batcher
    return changed


def config_pbtxt(config: Config) -> str:
    """The configuration as config.pbtxt has it. Raises: AnalyzeError where the server's configuration has what this
    program's schema lacks."""
    from google.protobuf import json_format, text_format

    changed = message("inference.ModelConfig")()
    try:
        json_format.ParseDict(dict(config), changed)
    except json_format.ParseError as error:
        raise AnalyzeError(f"the server's configuration is not understood: {error}") from error
    text: str = text_format.MessageToString(changed)
    return text
