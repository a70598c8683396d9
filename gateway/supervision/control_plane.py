"""The parts of a gateway's control process, wired together, and what the admin API reads and does of them."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, partial

from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec, with_endpoints
from gateway.control.forked_child import ForkedChild
from gateway.control.messages import GetReadiness, RenameRegions, SealPins, SetDrained, SetLogLevel, SetWeights, Spans
from gateway.discovery.discovery import Discovery, Endpoints
from gateway.experiments.controller import ExperimentController, GatewayActions, RulesNotWritten
from gateway.experiments.coordination import LocalCoordination, RedisCoordination
from gateway.net.tls_files import reload_changed
from gateway.observability.arm_stats import ArmCounts, ArmKey
from gateway.observability.exemplars import Exemplars
from gateway.observability.exposition_state import ExpositionState
from gateway.observability.logs import log_level, set_log_level
from gateway.observability.span_export import SpanExport
from gateway.observability.spans import decode_batch
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Readiness
from gateway.redis.bounded_client import BoundedRedis
from gateway.rule_versions.editor import RuleTexts, set_weights
from gateway.rule_versions.version import EditError, RulesRefused
from gateway.sessions.client_pin import pin_key
from gateway.supervision.activation import Activations
from gateway.supervision.budgets import BudgetLedger
from gateway.supervision.cache_tracker import CacheTracker
from gateway.supervision.decision_feed import DecisionFeed
from gateway.supervision.drains import DrainedSince
from gateway.supervision.ports import InferencePort, ReservedPort
from gateway.supervision.recordings import Recordings
from gateway.supervision.redis_setup import data_dir_of, handover_dir, redis_of, warn_of_eviction
from gateway.supervision.replicas import ReplicaListeners, Replicas
from gateway.supervision.rule_distribution import RuleSharing
from gateway.supervision.rule_manager import RuleManager
from gateway.supervision.rule_signature import RuleSignature, read_shared_secret
from gateway.supervision.rulebook import Rulebook
from gateway.supervision.shadow_process import ShadowSupervisor
from gateway.supervision.shadow_reports import ReportFiles, ReportsInRedis, SharedReports
from gateway.supervision.stored_keys import StoredKeys
from gateway.supervision.stored_secret import digest_secret, region_secret
from gateway.supervision.viewer_digests import ViewerDigests
from gateway.supervision.worker_pool import WorkerPool
from gateway.upstream.engine_metrics import EngineMetrics
from gateway.upstream.health import Findings, Prober

_log = logging.getLogger("pointsman")

# How long the control process waits for Redis: no request does, so `--redis-deadline` is not meant for it.
_REDIS_SECONDS = 1.0
# A worker that dies loses what it has counted since the last count.
_COUNT_SECONDS = 5.0
_READINESS_SECONDS = 2.0  # for workers that are busy, until readiness says no
_LISTS_SECONDS = 2.0  # for lists of models that may have changed
# How long readiness waits for the first probes; an engine that does not answer by then is not healthy yet.
_FIRST_PROBES_SECONDS = 2.0
# The same for sources of endpoints.
_FIRST_ANSWERS_SECONDS = 5.0
_DISCOVERY = "discovery"  # drains endpoints that leave their source


@cache
def _version() -> str:
    from importlib.metadata import version  # which loads a parser of mail

    return version("pointsman")


class ControlPlane:
    """Owns the workers, the prober, the rules, the experiments and the shadow process of one gateway."""

    def __init__(
        self,
        settings: Settings,
        book: Rulebook,
        ports: Sequence[ReservedPort],
        worker_command: Sequence[str],
        forked: list[ForkedChild] | None = None,
    ) -> None:
        """`book` is open; `forked` are the first workers.

        Raises: ValueError where the settings name no valid Redis or no secret.
        """
        self.inference = InferencePort.of(settings, ports[0].port)
        self.book = book
        self._settings = settings
        address, self._embedded_redis = redis_of(settings)
        self.store = BoundedRedis(address, deadline=_REDIS_SECONDS) if address is not None else None
        self._prober = Prober(self._health_changed, settings.probe_connections)
        self.discovery = Discovery(self._endpoints_changed)
        self._engine_metrics = EngineMetrics()
        self._cache_tracker = CacheTracker(lambda message: self.workers.send(message))
        self.workers = WorkerPool(settings, book.rules, ports, worker_command, address, forked=forked)
        self.workers.number = book.number
        self.workers.on_models_changed = self.look_at_models
        folder = data_dir_of(settings)
        stored = ReportFiles(folder / "shadows" if folder is not None else None)
        reports = SharedReports(ReportsInRedis(self.store) if self.store is not None else stored)
        self.shadows = ShadowSupervisor(settings, book.rules, self.workers.counters, shared=reports)
        self.workers.captures = self.shadows.socket_path
        self.replicas = Replicas(
            address,
            ReplicaListeners(
                rules_changed=book.reload,
                rules_shared=lambda: self.rule_manager.sync(),
                condition_changed=self._prober.look,
                conditions_missed=self._prober.look_at_all,
                drained=self._drained_changed,
                experiment_changed=lambda: self.experiments.wake(),
            ),
        )
        secret_file = settings.shared_secret_file
        shared_secret = read_shared_secret(secret_file) if secret_file is not None else None
        signature = RuleSignature(shared_secret) if shared_secret is not None else None
        sharing = RuleSharing(book, self.store, self.replicas.name, signature)
        self.rule_manager = RuleManager(book, self.replicas, sharing, self._use_rules, self.workers.settle)
        self._stored_keys = StoredKeys(self.store, lambda: self.book.rules, self.workers.set)
        self.experiments = self._make_experiments()
        self.decisions = DecisionFeed(
            self.workers.set, workers=settings.workers, redacted=tuple(name.lower() for name in settings.redact)
        )
        self.workers.on_decisions = self.decisions.receive
        self.recordings = Recordings(folder / "recordings" if folder is not None else None, self.decisions)
        self._secret: Callable[[], bytes] = digest_secret(folder)
        if shared_secret is not None:
            self._secret = partial(bytes, shared_secret)
        self.digests = ViewerDigests(self._secret)
        self._seal_pins(book.rules)
        self.workers.region_secret = region_secret(folder)
        self.workers.handover = str(handover_dir(folder)) if folder is not None else ""
        if (secret := self.workers.region_secret.stored()) is not None:
            self.workers.set(RenameRegions(secret))
        self.budgets = BudgetLedger(self.workers, self.store, folder, digests=self.digests)
        self.workers.on_spent = self.budgets.receive
        self._activations = Activations()
        self._activations.use(book.rules.engines)
        self.workers.on_wanted = self._activations.wanted
        self.workers.on_prompts = self._cache_tracker.receive
        self.workers.spending = lambda: self.budgets.spending
        tracing = settings.tracing
        self._span_export = SpanExport(tracing, _version()) if tracing is not None else None
        if self._span_export is not None:
            for pool in (self.workers, self.shadows.pool):
                pool.on_spans = self._take_spans
        self._tasks: list[asyncio.Task[None]] = []
        self._redis_check: asyncio.Task[None] | None = None

    # Running

    async def start(self, inherited: Sequence[Sequence[socket.socket]] = ()) -> None:
        """Return once the workers serve and the endpoints have been probed, as far as they answer. `inherited` are the
        listening sockets of other workers.

        Raises: StartError.
        """
        self.discovery.use(self.book.rules.engines)
        await self.discovery.first_answers(_FIRST_ANSWERS_SECONDS)
        self._use_engines()
        self._look_at_certificates(self.book.rules)
        if self._embedded_redis is not None and not await self._embedded_redis.start():
            _log.warning("the embedded Redis does not answer yet; requests are served without it until it does")
        await self.rule_manager.join()
        await self._stored_keys.look()
        await self.budgets.open(self.book.rules.budgets, is_verified=self.book.rules.auth is not None)
        await self.experiments.open(self.book.rules)
        self.shadows.use_rules(self.book.rules, self.book.number)
        await asyncio.gather(self.shadows.ready(), self.workers.start(inherited))
        self.experiments.start()
        await self._prober.first_round(_FIRST_PROBES_SECONDS)

    def run(self) -> None:
        """Follow the rule files, the other gateways and the workers' counters from now on."""
        loop = asyncio.get_running_loop()
        loops = (
            self.rule_manager.follow_files(),
            self.rule_manager.follow_replicas(),
            self._stored_keys.follow(),
            self._keep_counting(),
        )
        self._tasks = [loop.create_task(each) for each in loops]
        if self.store is not None:
            self._look_at_redis()
            self.store.on_return(self._look_at_redis)

    async def is_ready(self) -> bool:
        """Whether readiness says yes in a worker."""
        return any(await self.workers.query(GetReadiness(), _READINESS_SECONDS))

    async def stop_workers(self, *, leaves_them: bool = False) -> None:
        """Stop at once what serves and records; `leaves_them`: the workers serve on when this process has ended."""
        for task in self._tasks:
            task.cancel()
        self.recordings.close()
        if leaves_them:
            self.workers.leave()
        else:
            await self.workers.close()

    async def close(self) -> None:
        """Stop the rest, after the admin server."""
        if self._redis_check is not None:
            self._redis_check.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for part in (
            self.budgets,
            self._activations,
            self.discovery,
            self._prober,
            self._cache_tracker,
            self._engine_metrics,
            self.shadows,
            self.experiments,
            self.replicas,
        ):
            await part.close()
        if self._span_export is not None:
            await asyncio.to_thread(self._span_export.close)
        if self.store is not None:
            await self.store.close()
        if self._embedded_redis is not None:
            await self._embedded_redis.close()

    def _look_at_redis(self) -> None:
        """Its settings may be others after an outage."""
        assert self.store is not None
        self._redis_check = asyncio.get_running_loop().create_task(warn_of_eviction(self.store))

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            await self.count()
            await self.shadows.share()
            reload_changed()  # of the probes

    # Changes that concern several parts

    def _use_rules(self, rules: RulesSpec, number: int) -> None:
        if self.workers.number != number or self.workers.rules.of_files != rules.of_files:
            self.discovery.use(rules.engines)
        self._activations.use(rules.engines)
        if self.workers.number != number:
            self._seal_pins(rules)
            self.workers.use_rules(rules, number)
            self.budgets.use(rules.budgets, is_verified=rules.auth is not None)
            self.experiments.use_rules(rules)
            self.shadows.use_rules(rules, number)
            self._use_engines()
            _log.info("rules %d are in force (%s)", number, rules.digest[:12])
        elif self.workers.rules.of_files != rules.of_files:
            self.workers.use_rules(rules, number)
            self.shadows.use_rules(rules, number)
            self._use_engines()
            _log.info("other keys of clients, or credentials of engines, are in force")
        self._look_at_certificates(rules)

    def _look_at_certificates(self, rules: RulesSpec) -> None:
        tls, auth = self._settings.tls, rules.auth
        reads_certificates = (tls is not None and tls.client_ca is not None) or (
            auth is not None and auth.forwarded_certificates
        )
        if auth is not None and auth.certificates and not reads_certificates:
            _log.warning("the rules know callers by certificates, and the listener asks for none: use --tls-client-ca")

    def _take_spans(self, message: Spans) -> None:
        if self._span_export is not None:
            self._span_export.receive(decode_batch(message.encoded, message.dropped, message.clock))

    def _health_changed(self, findings: Findings) -> None:
        for pool in (self.workers, self.shadows.pool):
            pool.set_health(findings)
        self.discovery.look(key for key, each in findings.conditions.items() if each is Readiness.DOWN)
        self.replicas.conditions_changed(findings.conditions)

    @property
    def models(self) -> Mapping[tuple[str, str], AdvertisedModels]:
        """What the endpoints list, by engine and URL, as far as they do."""
        return self._prober.models

    async def look_at_models(self, keys: Collection[tuple[str, str]]) -> None:
        """Models have been loaded or unloaded at these endpoints, by engine and URL; return once the workers are sent
        what their lists have, or when these are late."""
        await self._prober.look_at_models(keys, _LISTS_SECONDS)

    def _drained_changed(self, drained: Collection[tuple[str, str]]) -> None:
        for pool in (self.workers, self.shadows.pool):
            pool.set(SetDrained(frozenset({*drained, *self.discovery.leaving})))

    def _endpoints_changed(self, changes: Endpoints) -> None:
        for pool in (self.workers, self.shadows.pool):
            if changes:
                pool.set_endpoints(changes)
        self._drained_changed(self.replicas.drained)
        self._use_engines()

    def _use_engines(self) -> None:
        """Probe the endpoints that the engines have now, and follow their caches."""
        engines = self.rules.engines
        self._prober.use(engines)
        self._cache_tracker.use(engines)

    # Experiments

    def _seal_pins(self, rules: RulesSpec) -> None:
        """Have workers sign what clients keep of their sessions' arms, once rules have such."""
        if any(each.is_by_session and each.pin == "client" for each in rules.experiments.values()):
            self.workers.set(SealPins(pin_key(self._secret())))
            if self._settings.shared_secret_file is None and self._settings.redis not in ("embedded", "off"):
                what = "clients show the arms of their sessions to this gateway alone, where Redis is slow"
                _log.info("%s: gateways that share a Redis share what signs them by --shared-secret-file", what)

    def _make_experiments(self) -> ExperimentController:
        """Experiments are coordinated through Redis; without it they are this gateway's, stored in its data folder."""
        tick = self._settings.experiment_tick
        actions = GatewayActions(
            self._arm_counts,
            lambda weights, runs: self.workers.set(SetWeights(weights, runs)),
            self._write_weights,
            self.replicas.experiment_changed,
            self._arms_in_flight,
        )
        if self.store is not None:
            name = f"{self.replicas.name}:{secrets.token_hex(2)}"
            return ExperimentController(RedisCoordination(self.store, name, tick=tick), actions, tick=tick)
        folder = data_dir_of(self._settings)
        local = LocalCoordination(folder / "experiments" if folder is not None else None)
        return ExperimentController(local, actions, tick=tick)

    async def _arm_counts(self) -> Mapping[ArmKey, ArmCounts]:
        await self.workers.count()
        return self.workers.counters.arms()

    def _arms_in_flight(self) -> Mapping[ArmKey, int]:
        """Requests in flight by arm: all that is seen of an engine that hangs."""
        experiments = {route.name: route.experiment for route in self.book.rules.routes}
        found: Counter[ArmKey] = Counter()
        for key, series in self.workers.counters.series().items():
            experiment = experiments.get(key.route)
            if experiment is not None and key.arm:
                found[ArmKey(experiment, key.arm)] += series.in_flight
        return found

    async def _write_weights(self, experiment: str, weights: Mapping[str, float], author: str, reason: str) -> None:
        def edit(texts: RuleTexts) -> None:
            set_weights(texts, experiment, weights)

        try:
            await self.rule_manager.use(self.book.change(edit, author, reason, "experiment"))
        except (EditError, RulesRefused) as error:
            raise RulesNotWritten(str(error)) from error

    # What the admin API reads and does

    @property
    def log_level(self) -> str:
        return log_level()

    def set_log_level(self, level: str) -> None:
        set_log_level(level)
        self.workers.set(SetLogLevel(level))

    async def count(self) -> None:
        """Bring all counters and reports up to date, as far as the workers answer in time."""
        await asyncio.gather(self.workers.count(), self.shadows.count())

    async def metrics_of_engines(self) -> bytes:
        """Those of the engines that declare `metrics.path`, in Prometheus' text."""
        return await self._engine_metrics.text(self.rules.engines)

    @property
    def exemplars(self) -> Exemplars | None:
        """Traces in the buckets of histograms; None where nothing is traced."""
        return self._span_export.exemplars if self._span_export is not None else None

    @property
    def rules(self) -> RulesSpec:
        """Those in force, with the endpoints that sources of engines have found."""
        return with_endpoints(self.book.rules, self.discovery.endpoints)

    @property
    def drained(self) -> dict[tuple[str, str], DrainedSince]:
        """The endpoints that get no new work: drained by operators, or leaving their source."""
        leaving = {key: DrainedSince(since, _DISCOVERY) for key, since in self.discovery.leaving.items()}
        return leaving | dict(self.replicas.drained)

    async def exposition(self) -> ExpositionState:
        """All counters, as recent as the workers answer."""
        await self.count()
        book, counted = self.book, self.workers.counters.total()
        total = replace(counted, loads={**counted.loads, **self._prober.loads})
        return ExpositionState(
            **{each.name: getattr(total, each.name) for each in fields(total)},
            health=self._prober.health,
            models=self._prober.models,
            drained=self.drained,
            sources=self.discovery.statuses(),
            cache_events=self._cache_tracker.counts,
            rules_number=book.number,
            reloads_ok=book.readings_ok,
            reloads_refused=book.readings_refused,
            workers=self.workers.num_serving,
            worker_restarts=self.workers.restarts,
            version=_version(),
            redis_restarts=self._embedded_redis.restarts if self._embedded_redis is not None else 0,
            runs=self.experiments.facts(),
            shadows=self.shadows.counts(),
            budgets=self.budgets.uses(),
            traces=self._span_export.counts if self._span_export is not None else None,
        )
