"""Loads versions of models: their instances or ensemble graph, scheduler and warm-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from engines import instances
from engines.core.calls import Submit
from engines.core.errors import EngineError
from engines.host.cache_setup import response_cache
from engines.host.custom_metrics import CustomMetrics
from engines.host.model import HostedModel
from engines.host.settings import HostSettings
from engines.host.statistics import CountedInstance, Duration, Statistics
from engines.host.summaries import SummarizedDuration
from engines.host.tracing import Tracer
from engines.host.warmup import samples, warm_up
from engines.repository import Repository
from engines.repository.states import ModelSpec
from engines.scheduling.cache import CachedScheduler, is_cached
from engines.scheduling.ensemble import Ensemble
from engines.scheduling.factory import scheduler_for
from engines.scheduling.interfaces import Instance, RequestScheduler
from engines.scheduling.rate_limiter import RateLimiter


class LoopTimer:
    """One call at a time in the future, never early."""

    __slots__ = ("_callback", "_handle", "_loop", "_when_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, when_ns: int, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._when_ns = when_ns
        self._callback = callback
        self._handle: asyncio.Handle
        self._wait()

    def cancel(self) -> None:
        self._handle.cancel()

    def _wait(self) -> None:
        remaining_ns = self._when_ns - time.monotonic_ns()
        # uvloop's timers count whole milliseconds; less than that takes a few turns of the loop.
        if remaining_ns > 1_000_000:
            self._handle = self._loop.call_later(remaining_ns / 1e9, self._due)
        else:
            self._handle = self._loop.call_soon(self._due)

    def _due(self) -> None:
        if time.monotonic_ns() >= self._when_ns:
            self._callback()
        else:
            self._wait()


class LoopClock:
    """A scheduler's `Clock` over an event loop: nanoseconds of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def call_at(self, when_ns: int, callback: Callable[[], None]) -> LoopTimer:
        return LoopTimer(self._loop, when_ns, callback)


# Time to finalize a model that is idle.
_MIN_STOP_SECONDS = 2.0


class Loader:
    """The repository's `Load`, and the repository as models use it (`pb_utils.load_model`, `unload_model`,
    `is_model_ready`). `infer` takes requests between models."""

    repository: Repository  # set before the first load

    def __init__(self, settings: HostSettings, tracer: Tracer, infer: Submit) -> None:
        """Raises: ValueError for invalid options of the cache."""
        self._settings = settings
        self._tracer = tracer
        self._infer = infer
        self._clock = LoopClock(asyncio.get_running_loop())
        self.cache = response_cache(settings.cache_options, self._clock)
        self._limiter = RateLimiter(settings.rate_limits) if settings.is_rate_limited else None
        self._limits = instances.ProcessLimits(stop_seconds=max(_MIN_STOP_SECONDS, settings.exit_timeout_seconds))
        self._models: set[HostedModel] = set()
        self.custom_metrics = CustomMetrics()

    @property
    def models(self) -> Iterable[HostedModel]:
        """All loaded versions, including those that unload."""
        return tuple(self._models)

    def is_ready(self, name: str, version: str) -> bool:
        with suppress(EngineError):
            self._find(name, version)
            return True
        return False

    def is_decoupled(self, name: str, version: str) -> bool:
        with suppress(EngineError):
            return self._find(name, version).is_decoupled
        return False

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Raises: EngineError."""
        await self.repository.load(name, config, files)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Raises: EngineError."""
        await self.repository.unload(name, unload_dependents)

    async def __call__(self, spec: ModelSpec) -> HostedModel:
        """Raises: EngineError."""
        if spec.config.HasField("ensemble_scheduling"):
            return await self._ensemble(spec)
        return await self._instances(spec)

    async def _instances(self, spec: ModelSpec) -> HostedModel:
        """A model with instance processes."""
        statistics = self._statistics(spec)
        counted: dict[Instance, CountedInstance] = {}
        scheduler: RequestScheduler | None = None

        def changed(instance: Instance) -> None:
            if scheduler is not None and instance in counted:
                scheduler.instance_changed(counted[instance])

        running = await instances.start(
            spec,
            backend_options=self._backend_options(spec.config.backend),
            infer=self._infer,
            on_change=changed,
            control=self,
            metrics=self.custom_metrics,
            limits=self._limits,
            completes=self._settings.completes_configs,
        )
        try:
            counted = {instance: CountedInstance(instance, statistics) for instance in running.instances}
            await warm_up(running.instances, samples(running.config, spec.directory))
            scheduler = scheduler_for(
                running.config,
                list(counted.values()),
                self._clock,
                limiter=self._limiter,
                drop_state=lambda instance, key: instance.forget(key),  # type: ignore[attr-defined]
            )
            return self._model(spec, running.config, scheduler, statistics, running.stop, pids=lambda: running.pids)
        except BaseException:
            await running.stop()
            raise

    async def _ensemble(self, spec: ModelSpec) -> HostedModel:
        """A graph of other models; each request counts as an execution, as in Triton."""
        statistics = self._statistics(spec)
        scheduler = Ensemble(
            spec.config,
            lambda name, version: self._find(name, version).submit,
            lambda name, version: self._find(name, version).config,
        )
        return self._model(spec, spec.config, scheduler, statistics, _nothing, is_ensemble=True)

    def _model(
        self,
        spec: ModelSpec,
        config: Any,
        scheduler: RequestScheduler,
        statistics: Statistics,
        stop: Callable[[], Awaitable[None]],
        *,
        pids: Callable[[], Sequence[int]] = tuple,
        is_ensemble: bool = False,
    ) -> HostedModel:
        async def finish() -> None:
            self._models.discard(model)
            await stop()

        cache = self.cache if is_cached(config) else None
        if cache is not None:
            scheduler = CachedScheduler(config, str(spec.version), scheduler, cache, self._clock, statistics)
        model = HostedModel(
            spec,
            config,
            scheduler,
            statistics=statistics,
            tracer=self._tracer,
            now_ns=self._clock.now_ns,
            finish=finish,
            pids=pids,
            is_cached=cache is not None,
            is_ensemble=is_ensemble,
        )
        self._models.add(model)
        return model

    def _find(self, name: str, version: str) -> HostedModel:
        """Raises: EngineError where the model is not ready."""
        return cast(HostedModel, self.repository.get(name, version))

    def _statistics(self, spec: ModelSpec) -> Statistics:
        is_decoupled = spec.config.model_transaction_policy.decoupled
        now_ns = self._clock.now_ns
        is_summarized = self._settings.metrics_config.summary_latencies
        duration = (lambda: SummarizedDuration(now_ns)) if is_summarized else Duration
        return Statistics(now_ns, lambda: time.time_ns() // 1_000_000, is_decoupled=is_decoupled, duration=duration)

    def _backend_options(self, backend: str) -> dict[str, str]:
        """The options of all backends, and of this one."""
        options = self._settings.backend_options
        return {**options.get("", {}), **options.get(backend, {})}


async def _nothing() -> None:
    """An ensemble releases nothing."""
