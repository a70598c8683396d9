"""The scheduler of a model by its configuration, and the default one: one call an execution, in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from engines.core.calls import InferenceCall
from engines.scheduling.batching import DynamicBatcher
from engines.scheduling.instance_pool import InstancePool
from engines.scheduling.interfaces import Clock, Instance, RequestScheduler, stopping
from engines.scheduling.rate_limiter import Enrol, RateLimiter, enrolment
from engines.scheduling.sequences import DropState, SequenceScheduler


class DefaultScheduler:
    def __init__(self, instances: Sequence[Instance], clock: Clock, enrol: Enrol | None = None) -> None:
        self._waiting: OrderedDict[InferenceCall, None] = OrderedDict()  # removing a cancelled call is cheap
        self._is_stopped = False
        self._is_dispatching = False
        self._pool = InstancePool(instances, clock, self._dispatch, enrol=enrol)

    @property
    def num_pending(self) -> int:
        return len(self._waiting)

    def submit(self, call: InferenceCall) -> None:
        if self._is_stopped:
            call.fail(stopping(call))
        elif call.is_cancelled:
            call.fail_cancelled()
        elif not self._waiting and (held := self._pool.take()) is not None:
            self._pool.run(held, (call,))
        else:
            self._waiting[call] = None
            call.on_cancel = partial(self._cancel, call)

    def instance_changed(self, instance: Instance) -> None:
        self._pool.changed(instance)

    def stop(self) -> None:
        self._is_stopped = True
        waiting, self._waiting = self._waiting, OrderedDict()
        for call in waiting:
            call.fail(stopping(call))
        self._pool.close()

    def _cancel(self, call: InferenceCall) -> None:
        if call in self._waiting:
            del self._waiting[call]
            call.fail_cancelled()

    def _dispatch(self) -> None:
        if self._is_dispatching:
            return  # an instance ended at once: the loop below continues
        self._is_dispatching = True
        try:
            while self._waiting and (held := self._pool.take()) is not None:
                call, _ = self._waiting.popitem(last=False)
                call.on_cancel = None
                self._pool.run(held, (call,))
        finally:
            self._is_dispatching = False


def scheduler_for(
    config: Any,
    instances: Sequence[Instance],
    clock: Clock,
    *,
    limiter: RateLimiter | None = None,
    drop_state: DropState | None = None,
) -> RequestScheduler:
    """The scheduler of a model that runs on instances; an ensemble has its own (`ensemble.Ensemble`).

    `config` is an `inference.ModelConfig` message. `limiter` is the host's, None without limits (`--rate-limit off`).
    `drop_state` is called when an instance may drop an implicit state. Raises: EngineError if the limiter can never
    admit an instance.
    """
    enrol = None if limiter is None else enrolment(limiter, config)
    if config.HasField("sequence_batching"):
        return SequenceScheduler(config, instances, clock, enrol, drop_state)
    if config.HasField("dynamic_batching"):
        return DynamicBatcher(config, config.dynamic_batching, instances, clock, enrol)
    return DefaultScheduler(instances, clock, enrol)
