"""The parts of a gateway's control process, wired together, and what the admin API reads and does of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from gateway.admin.audit import AuditFile, AuditLog, RedisLog
from gateway.admin.control_plane import DrainedSince, InferencePort
from gateway.admin.event_feed import Feed
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.control.messages import SetDrained, SetLogLevel
from gateway.observability.exposition import ExpositionState
from gateway.observability.logs import log_level, set_log_level
from gateway.observability.stats import LiveRequest
from gateway.redis.bounded_client import Store
from gateway.supervision.decision_feed import DecisionFeed, FeedSubscription
from gateway.supervision.experiment_wiring import make_experiments
from gateway.supervision.ports import ReservedPort
from gateway.supervision.recordings import Recordings
from gateway.supervision.redis_setup import RedisHome, data_dir_of
from gateway.supervision.replicas import ReplicaListeners, Replicas
from gateway.supervision.rule_manager import RuleManager
from gateway.supervision.rulebook import Rulebook
from gateway.supervision.shadow_process import ShadowSupervisor
from gateway.supervision.worker_pool import WorkerPool
from gateway.upstream.health import Findings, Prober

_log = logging.getLogger("pointsman")

# A worker that dies loses what it has counted since the last count.
_COUNT_SECONDS = 5.0
# How long readiness waits for the first probes; an engine that does not answer by then is not healthy yet.
_FIRST_PROBES_SECONDS = 2.0
# Decisions a second of each worker in the live tail, which people read.
_TAIL_RATE = 10.0


class GatewayControlPlane:
    """Owns the workers, the prober, the rules, the experiments and the shadow process of one gateway."""

    def __init__(
        self,
        settings: Settings,
        book: Rulebook,
        ports: Sequence[ReservedPort],
        inference: InferencePort,
        worker_command: Sequence[str],
    ) -> None:
        """`book` is open.

        Raises: ValueError where the settings name no valid Redis.
        """
        self.inference = inference
        self._book = book
        self._redis = RedisHome(settings)
        address = self._redis.address
        self.store = Store(address) if address is not None else None
        self._prober = Prober(self._health_changed)
        self.workers = WorkerPool(settings, book.rules, ports, worker_command, address)
        self.workers.number = book.number
        self.shadows = ShadowSupervisor(settings, book.rules, self.workers.counters)
        self.workers.captures = self.shadows.socket_path
        self._replicas = Replicas(
            address,
            ReplicaListeners(
                rules_changed=book.reload,
                rules_shared=lambda: self.rule_manager.sync(),
                condition_changed=self._prober.look,
                drained=self._drained_changed,
                experiment_changed=lambda: self.experiments.wake(),
            ),
        )
        self.rule_manager = RuleManager(book, self._replicas, self.store, self._use_rules, self.workers.count)
        self.experiments = make_experiments(
            settings, self.workers, self._replicas, self.store, self.rule_manager.change, lambda: book.rules
        )
        self.feed = Feed(self)
        self.experiments.on_tick(
            lambda experiments: self.feed.publish("experiment", {"experiments": experiments}),
            lambda: self.feed.has_subscribers,
        )
        folder = data_dir_of(settings)
        self.audit_log: AuditLog = RedisLog(self.store) if self.store is not None else AuditFile(folder)
        self._decisions = DecisionFeed(
            self.workers.set, workers=settings.workers, redacted=tuple(name.lower() for name in settings.redact)
        )
        self.workers.on_decisions = self._decisions.receive
        self.recordings = Recordings(folder / "recordings" if folder is not None else None, self._decisions)
        self._tail = FeedSubscription(self._publish_decisions, _TAIL_RATE)
        self.feed.on_decisions_wanted(self._watch_tail)
        self._tasks: list[asyncio.Task[None]] = []

    # Running

    async def start(self) -> None:
        """Return once the workers serve and the endpoints have been probed, as far as they answer.

        Raises: StartError.
        """
        self._prober.use(self._book.rules.engines)
        await self._redis.start()
        await self.rule_manager.join()
        await self.experiments.open(self._book.rules)
        self.shadows.use_rules(self._book.rules, self._book.number)
        await asyncio.gather(self.shadows.ready(), self.workers.start())
        self.experiments.start()
        await self._prober.first_round(_FIRST_PROBES_SECONDS)

    def run(self) -> None:
        """Follow the rule files, the other gateways and the workers' counters from now on."""
        loop = asyncio.get_running_loop()
        loops = (self.rule_manager.follow_files(), self.rule_manager.follow_replicas(), self._keep_counting())
        self._tasks = [loop.create_task(each) for each in loops]

    async def stop_workers(self) -> None:
        """Stop at once what serves and records."""
        for task in self._tasks:
            task.cancel()
        self.recordings.close()
        await self.workers.close()
        self.feed.close()

    async def close(self) -> None:
        """Stop the rest, after the admin server."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for part in (self._prober, self.shadows, self.experiments, self._replicas):
            await part.close()
        if self.store is not None:
            await self.store.close()
        await self._redis.close()

    async def _keep_counting(self) -> None:
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            await self.count()

    # Changes that concern several parts

    def _use_rules(self, rules: RulesSpec, number: int) -> None:
        if self.workers.number != number:
            self.workers.use_rules(rules, number)
            self.experiments.use_rules(rules)
            self.shadows.use_rules(rules, number)
            self._prober.use(rules.engines)
            _log.info("rules %d are in force (%s)", number, rules.digest[:12])

    def _health_changed(self, findings: Findings) -> None:
        for pool in (self.workers, self.shadows.pool):
            pool.set_health(findings)
        self._replicas.conditions_changed(findings.conditions)

    def _drained_changed(self, drained: Collection[tuple[str, str]]) -> None:
        for pool in (self.workers, self.shadows.pool):
            pool.set(SetDrained(frozenset(drained)))

    def _watch_tail(self, is_wanted: bool) -> None:
        if is_wanted:
            self._decisions.add(self._tail)
        else:
            self._decisions.remove(self._tail)

    def _publish_decisions(self, decisions: list[dict[str, Any]], skipped: int) -> None:
        for decision in decisions:
            self.feed.publish("decision", decision)

    # What the admin API reads and does

    @property
    def drained(self) -> Mapping[tuple[str, str], DrainedSince]:
        return self._replicas.drained

    async def drain(self, engine: str, url: str, is_draining: bool, by: str) -> bool:
        return await self._replicas.drain((engine, url), is_draining, by)

    async def requests(self, limit: int) -> list[LiveRequest]:
        return await self.workers.requests(limit)

    async def cancel_request(self, id: str) -> int:
        return await self.workers.cancel_request(id)

    @property
    def log_level(self) -> str:
        return log_level()

    def set_log_level(self, level: str) -> None:
        set_log_level(level)
        self.workers.set(SetLogLevel(level))

    async def count(self) -> None:
        await asyncio.gather(self.workers.count(), self.shadows.count())

    async def exposition(self) -> ExpositionState:
        await self.count()
        total, book = self.workers.counters.total(), self._book
        return ExpositionState(
            **vars(replace(total, loads={**total.loads, **self._prober.loads})),
            health=self._prober.health,
            models=self._prober.models,
            drained=self.drained,
            rules_number=book.number,
            reloads_ok=book.readings_ok,
            reloads_refused=book.readings_refused,
            workers=self.workers.num_serving,
            worker_restarts=self.workers.restarts,
            version=version("pointsman"),
            redis_restarts=self._redis.restarts,
            runs=self.experiments.facts(),
            shadows=self.shadows.counts(),
        )
