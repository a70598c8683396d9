"""What `pointsman serve` runs: the control process, from its start to its exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gateway.admin.app import make_app
from gateway.admin.audit import audit_log
from gateway.admin.audit_file import AuditFile
from gateway.admin.event_feed import Feed
from gateway.admin.playground import InferencePort
from gateway.admin.server import AdminServer, admin_server
from gateway.config.rules import LoadedRules
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.experiments.controller import ExperimentController
from gateway.net import descriptors
from gateway.observability.active_request import LiveRequest
from gateway.observability.exposition import ExpositionState
from gateway.observability.logs import log_level, set_log_level
from gateway.redis.bounded_client import Store
from gateway.supervision.admin_access import admin_access
from gateway.supervision.drains import DrainedSince
from gateway.supervision.experiment_wiring import make_experiments
from gateway.supervision.ports import PortError, ReservedPort, listen
from gateway.supervision.recordings import Recordings
from gateway.supervision.redis_setup import RedisHome, data_dir_of, versions_dir
from gateway.supervision.replicas import Ears, Replicas
from gateway.supervision.rule_manager import RuleKeeping
from gateway.supervision.shadow_process import ShadowSupervisor
from gateway.supervision.traffic_watch import Watching
from gateway.supervision.worker_pool import COMMAND, StartError, WorkerPool
from gateway.upstream.health import Findings, Prober

_log = logging.getLogger("pointsman")

# A worker that dies takes with it what it has counted since.
_COUNT_SECONDS = 5.0
# How long readiness waits for the first probes; an engine that does not answer by then is not healthy yet.
_FIRST_PROBES_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway can be reached, once it serves."""

    host: str
    http_port: int
    grpc_port: int
    admin_host: str
    admin_port: int


class Supervisor(RuleKeeping):
    """Owns the workers, the prober, the rule files and the admin server."""

    def __init__(
        self,
        settings: Settings,
        rule_paths: Sequence[Path],
        *,
        ready_file: Path | None = None,
        ready: Callable[[Addresses], None] = lambda addresses: None,
        worker_command: Sequence[str] = COMMAND,
    ) -> None:
        super().__init__(rule_paths, versions_dir(settings, rule_paths))
        self._settings = settings
        self._ready_file = ready_file
        self._ready = ready
        self._worker_command = worker_command
        self._stop_signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._redis: RedisHome | None = None
        self._store: Store | None = None
        self._workforce: WorkerPool | None = None
        self._watching: Watching | None = None
        self._prober: Prober | None = None
        self._shadowing: ShadowSupervisor | None = None
        self.feed = Feed(self)  # what is told to whoever listens at the admin API
        self._inference: InferencePort | None = None

    # What the admin API reads

    @property
    def drained(self) -> Mapping[tuple[str, str], DrainedSince]:
        assert self._replicas is not None
        return self._replicas.drained

    async def drain(self, engine: str, url: str, is_draining: bool, by: str) -> bool:
        """Have an endpoint get no new work, or get it again; tells whether Redis tells the other replicas."""
        assert self._replicas is not None
        return await self._replicas.drain((engine, url), is_draining, by)

    @property
    def shadows(self) -> ShadowSupervisor:
        """Mirrored routes, and how their candidates compare."""
        assert self._shadowing is not None
        return self._shadowing

    @property
    def store(self) -> Store | None:
        """Where conversations are, for operators; None without Redis."""
        return self._store

    @property
    def inference(self) -> InferencePort:
        """Where requests go in."""
        assert self._inference is not None
        return self._inference

    async def requests(self, limit: int) -> list[LiveRequest]:
        """The requests under way in all workers, the oldest first."""
        assert self._workforce is not None
        return await self._workforce.requests(limit)

    async def cancel_request(self, id: str) -> int:
        """End the requests of this id; returns how many there were."""
        assert self._workforce is not None
        return await self._workforce.cancel_request(id)

    @property
    def log_level(self) -> str:
        return log_level()

    def set_log_level(self, level: str) -> None:
        """Log from this level on, here and in all workers."""
        assert self._workforce is not None
        set_log_level(level)
        self._workforce.set_log_level(level)

    @property
    def experiments(self) -> ExperimentController:
        assert self._experiments is not None
        return self._experiments

    async def count(self) -> None:
        """Ask the workers and the shadow process what they have counted."""
        assert self._workforce is not None
        await asyncio.gather(self._workforce.count(), self.shadows.count())

    @property
    def recordings(self) -> Recordings:
        assert self._watching is not None
        return self._watching.recordings

    async def exposition(self) -> ExpositionState:
        """All counters, as fresh as the workers answer."""
        workforce = self._workforce
        assert workforce is not None and self._prober is not None
        await self.count()
        return ExpositionState(
            series=workforce.tally.series(),
            connections=workforce.tally.connections,
            descriptors=workforce.tally.descriptors(),
            health=self._prober.health,
            models=self._prober.models,
            loads={**workforce.tally.loads(), **self._prober.loads},
            breakers_open=workforce.tally.breakers_open(),
            limits=workforce.tally.limits(),
            rules_number=self._book.number,
            reloads_ok=self._book.readings_ok,
            reloads_refused=self._book.readings_refused,
            workers=workforce.num_serving,
            worker_restarts=workforce.restarts,
            version=version("pointsman"),
            drained=frozenset(self.drained),
            store=workforce.tally.store(),
            sessions=workforce.tally.sessions(),
            arms=workforce.tally.arms(),
            runs=self.experiments.facts(),
            shadows=self.shadows.counts(),
            redis_restarts=self._redis.restarts if self._redis is not None else 0,
        )

    # Running

    async def run(self, loaded: LoadedRules) -> int:
        """Serve until a signal says stop; returns the exit status.

        Raises: AccessError, PortError, StartError.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        descriptors.raise_limit()
        access = admin_access(settings)
        self._book.open(loaded)
        self._take_signals(loop)
        self._forget_ready_file()  # one that a crash has left would be taken for ours
        http = ReservedPort(settings.host, settings.http_port, "--http-port")
        self._inference = InferencePort.of(settings, http.port)
        ports = [http]
        if settings.grpc_port != http.port:
            ports.append(ReservedPort(settings.host, settings.grpc_port, "--grpc-port"))
        for port in ports:
            if (settings.host, port.port) == (settings.admin_host, settings.admin_port):
                raise PortError(f"port {port.port} cannot serve both: choose another with --admin-port")
        admin = listen(settings.admin_host, settings.admin_port, "--admin-port")
        addresses = Addresses(settings.host, http.port, ports[-1].port, settings.admin_host, admin.getsockname()[1])
        self._redis = redis = RedisHome(settings)
        self._store = store = Store(redis.address) if redis.address is not None else None
        self._prober = prober = Prober(self._health_changed)
        self._workforce = workforce = WorkerPool(
            settings, self.rules, prober.health, ports, self._worker_command, redis.address
        )
        workforce.number = self._book.number
        folder = data_dir_of(settings)
        self._watching = Watching(settings, workforce, self.feed, folder / "recordings" if folder is not None else None)
        self._shadowing = shadowing = ShadowSupervisor(settings, workforce.tally)
        workforce.captures = shadowing.socket_path
        ears = Ears(
            self._book.ask,
            self._shared_rules.set,
            prober.look,
            self._drained_changed,
            self._look_at_experiments,
        )
        replicas = Replicas(redis.address, ears)
        self._meet(replicas, store)
        self._experiments = experiments = make_experiments(
            settings, workforce, replicas, store, self.change, lambda: self.rules
        )
        experiments.on_tick(
            lambda told: self.feed.publish("experiment", {"experiments": told}), lambda: self.feed.has_listeners
        )
        log = audit_log(store, AuditFile(data_dir_of(settings)))
        server = admin_server(make_app(self, access, log, self.feed))
        serving_admin = loop.create_task(server.serve([admin]))
        keeping: list[asyncio.Task[None]] = []
        try:
            starting = loop.create_task(self._start(server, serving_admin))
            stopping = loop.create_task(self._stop_signals.get())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                keeping = [
                    loop.create_task(work) for work in (self._keep_rules(), self._keep_sharing(), self._keep_count())
                ]
                self._announce(addresses)
            starting.cancel()
            await stopping
            return await self._drain()
        finally:
            self._forget_ready_file()
            self._watching.close()
            await workforce.close()
            self.feed.close()
            server.stop()
            for task in keeping:
                task.cancel()
            await asyncio.gather(serving_admin, *keeping, return_exceptions=True)
            await prober.close()
            await shadowing.close()
            await experiments.close()
            await replicas.close()
            if store is not None:
                await store.close()
            await redis.close()
            for port in ports:
                port.close()

    def _take_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """From the first moment on: a signal's default would end this process and leave its workers behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signals.put_nowait, number)
        loop.add_signal_handler(signal.SIGHUP, self._book.ask)

    async def _start(self, server: AdminServer, serving_admin: asyncio.Task[None]) -> None:
        """Return once workers and admin API serve and the endpoints have been probed, as far as they answer.

        Raises: StartError.
        """
        assert self._workforce is not None and self._prober is not None
        assert self._redis is not None and self._replicas is not None
        self._prober.use(self.rules.engines)
        await self._redis.start()
        await self._join()
        await self.experiments.open(self.rules)
        self.shadows.use_rules(self.rules, self._book.number)
        await asyncio.gather(self.shadows.ready(), self._workforce.start())
        self.experiments.start()
        await self._prober.first_round(_FIRST_PROBES_SECONDS)
        while not server.started:
            if serving_admin.done():
                raise StartError("the admin API does not serve")
            await asyncio.sleep(0.01)

    async def _drain(self) -> int:
        """Let requests in flight end; a second signal stops at once."""
        assert self._workforce is not None
        loop = asyncio.get_running_loop()
        _log.info("stopping: requests in flight may end within %g s", self._settings.drain_timeout)
        draining = loop.create_task(self._workforce.drain())
        again = loop.create_task(self._stop_signals.get())
        await asyncio.wait([draining, again], return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            _log.warning("stopping at once")
            self._workforce.kill()
            draining.cancel()
            return 1
        again.cancel()
        return 0 if draining.result() else 1

    def _announce(self, addresses: Addresses) -> None:
        """Tell that it serves; the ready file last, since whoever waits for it may read the log then."""
        self._ready(addresses)
        if self._ready_file is not None:
            told = {
                "http": addresses.http_port,
                "grpc": addresses.grpc_port,
                "admin": addresses.admin_port,
                "pid": os.getpid(),
            }
            partial = self._ready_file.with_name(self._ready_file.name + ".partial")
            partial.write_text(json.dumps(told) + "\n")
            partial.rename(self._ready_file)

    def _health_changed(self, found: Findings) -> None:
        if self._workforce is not None:
            self._workforce.set_health(found)
        if self._shadowing is not None:
            self._shadowing.set_health(found)
        if self._replicas is not None:
            self._replicas.conditions_found(found.conditions)

    def _drained_changed(self, drained: Collection[tuple[str, str]]) -> None:
        assert self._workforce is not None
        self._workforce.set_drained(frozenset(drained))
        self.shadows.set_drained(frozenset(drained))

    def _look_at_experiments(self) -> None:
        if self._experiments is not None:
            self._experiments.look()

    def _forget_ready_file(self) -> None:
        if self._ready_file is not None:
            self._ready_file.unlink(missing_ok=True)

    def _use_rules(self, rules: RulesSpec, number: int) -> None:
        assert self._workforce is not None and self._prober is not None
        if self._workforce.number != number:
            self._workforce.use_rules(rules, number)
            self.experiments.use_rules(rules)
            self.shadows.use_rules(rules, number)
            self._prober.use(rules.engines)
            _log.info("rules %d are in force (%s)", number, rules.digest[:12])

    async def _settle(self) -> None:
        assert self._workforce is not None
        await self._workforce.count()  # what was said to workers before is done before they answer

    async def _keep_count(self) -> None:
        """Have recent counters of every worker, for the case that it dies."""
        assert self._workforce is not None
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            await self.count()
