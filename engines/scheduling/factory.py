"""Which scheduler a model has: what its configuration says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engines.core.errors import EngineError, ErrorCode
from engines.scheduling.batching import DynamicBatcher
from engines.scheduling.fifo import DefaultScheduler
from engines.scheduling.interfaces import Clock, Instance, RequestScheduler
from engines.scheduling.rate_limiter import RateLimiter, enrolment
from engines.scheduling.sequences import DropState, SequenceScheduler


def scheduler_for(
    config: Any,
    instances: Sequence[Instance],
    clock: Clock,
    *,
    limiter: RateLimiter | None = None,
    drop_state: DropState | None = None,
) -> RequestScheduler:
    """The scheduler of a model that runs on instances; an ensemble has its own (`ensemble.Ensemble`).

    `config` is an `inference.ModelConfig` message. `limiter` is the host's one, None where executions are not limited
    (`--rate-limit off`). `drop_state` is told whose implicit state an instance may forget.
    Raises: EngineError where the limiter can never let an instance run, or for what this host does not do.
    """
    enrol = None if limiter is None else enrolment(limiter, config)
    if config.HasField("sequence_batching"):
        if config.sequence_batching.iterative_sequence:
            raise EngineError(
                ErrorCode.UNSUPPORTED, f"model '{config.name}' has iterative_sequence, which this host does not support"
            )
        return SequenceScheduler(config, instances, clock, enrol, drop_state)
    if config.HasField("dynamic_batching"):
        return DynamicBatcher(config, config.dynamic_batching, instances, clock, enrol)
    return DefaultScheduler(instances, clock, enrol)
