"""Loads versions of models: their instances or ensemble graph, scheduler and warm-up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from engines import instances
from engines.core.calls import Submit
from engines.core.errors import EngineError
from engines.host.clock import LoopClock
from engines.host.custom_metrics import CustomMetrics
from engines.host.model import HostedModel
from engines.host.settings import HostSettings
from engines.host.statistics import CountedInstance, Statistics
from engines.host.tracing import Tracer
from engines.host.warmup import samples, warm_up
from engines.repository import Repository
from engines.repository.states import ModelSpec
from engines.scheduling.cache import ResponseCache, cached, is_cached
from engines.scheduling.ensemble import Ensemble
from engines.scheduling.factory import scheduler_for
from engines.scheduling.interfaces import Instance, RequestScheduler
from engines.scheduling.rate_limiter import RateLimiter


class RepositoryControl:
    """The repository as models use it (`pb_utils.load_model`, `unload_model`, `is_model_ready`).

    It is created before the repository, whose loader needs it.
    """

    def __init__(self) -> None:
        self.repository: Repository | None = None

    def model(self, name: str, version: str) -> HostedModel:
        """Raises: EngineError where the model is not ready."""
        return cast(HostedModel, self._repository.get(name, version))

    def is_ready(self, name: str, version: str) -> bool:
        try:
            self.model(name, version)
        except EngineError:
            return False
        return True

    def is_decoupled(self, name: str, version: str) -> bool:
        try:
            return self.model(name, version).is_decoupled
        except EngineError:
            return False

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Raises: EngineError."""
        await self._repository.load(name, config, files)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Raises: EngineError."""
        await self._repository.unload(name, unload_dependents)

    @property
    def _repository(self) -> Repository:
        assert self.repository is not None
        return self.repository


# Time to finalize a model that is idle.
_MIN_STOP_SECONDS = 2.0


class Loader:
    """The repository's `Load`. `infer` takes requests between models; `control` finds and changes models for them."""

    def __init__(
        self,
        settings: HostSettings,
        tracer: Tracer,
        control: RepositoryControl,
        *,
        infer: Submit,
        cache: ResponseCache | None = None,
    ) -> None:
        self._settings = settings
        self._tracer = tracer
        self._control = control
        self._find = control.model
        self._infer = infer
        self._cache = cache
        self._limiter = RateLimiter(settings.rate_limits) if settings.is_rate_limited else None
        self._clock = LoopClock(asyncio.get_running_loop())
        self._limits = instances.ProcessLimits(stop_seconds=max(_MIN_STOP_SECONDS, settings.exit_timeout_seconds))
        self._models: set[HostedModel] = set()
        self.custom_metrics = CustomMetrics()

    def __repr__(self) -> str:
        return f"<Loader: {len(self._models)} versions loaded>"

    @property
    def models(self) -> Iterable[HostedModel]:
        """All loaded versions, including those that unload."""
        return tuple(self._models)

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
            control=self._control,
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
        scheduler = Ensemble(spec.config, self._submit_to, lambda name, version: self._find(name, version).config)
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

        model = HostedModel(
            spec,
            config,
            cached(config, str(spec.version), scheduler, self._cache, self._clock, statistics),
            statistics=statistics,
            tracer=self._tracer,
            now_ns=self._clock.now_ns,
            finish=finish,
            pids=pids,
            is_cached=self._cache is not None and is_cached(config),
            is_ensemble=is_ensemble,
        )
        self._models.add(model)
        return model

    def _submit_to(self, name: str, version: str) -> Submit:
        return self._find(name, version).submit

    def _statistics(self, spec: ModelSpec) -> Statistics:
        is_decoupled = spec.config.model_transaction_policy.decoupled
        return Statistics(self._clock.now_ns, lambda: time.time_ns() // 1_000_000, is_decoupled=is_decoupled)

    def _backend_options(self, backend: str) -> dict[str, str]:
        """The options of all backends, and of this one."""
        options = self._settings.backend_options
        return {**options.get("", {}), **options.get(backend, {})}


async def _nothing() -> None:
    """An ensemble releases nothing."""
