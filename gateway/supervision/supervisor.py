"""What `pointsman serve` runs: the control process, from its start to its exit status."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from gateway.admin.app import admin_server, make_app
from gateway.config.rules import LoadedRules, load_rules
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.config.watch import RuleFiles
from gateway.observability.exposition import ExpositionState
from gateway.protocol.condition import Condition
from gateway.supervision.ports import ReservedPort
from gateway.supervision.worker_process import COMMAND
from gateway.supervision.workforce import Workforce
from gateway.upstream.engine import client_tls
from gateway.upstream.health import Prober

_log = logging.getLogger("pointsman")

_WATCH_SECONDS = 1.0
_COUNT_SECONDS = 5.0
# How long readiness waits for the first probes; an engine that does not answer by then is not healthy yet.
_FIRST_PROBES_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the gateway can be reached, once it serves."""

    host: str
    http_port: int
    admin_host: str
    admin_port: int


def unusable_files(rules: RulesSpec) -> list[str]:
    """What is wrong with the certificate files that the rules name: workers would refuse the rules for it."""
    found = []
    for name, engine in rules.engines.items():
        for endpoint in engine.endpoints:
            try:
                client_tls(engine.tls, endpoint.url)
            except OSError as error:  # ssl.SSLError is one
                found.append(f"{engine.location}: error: the TLS files of engine '{name}' cannot be used: {error}")
                break
    return found


class Supervisor:
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
        self._settings = settings
        self._paths = rule_paths
        self._ready_file = ready_file
        self._ready = ready
        self._worker_command = worker_command
        self._watch = RuleFiles(rule_paths)
        self._stop_signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
        self._reloads_ok = 0
        self._reloads_refused = 0
        self.problems: list[str] = []
        self._loaded: LoadedRules | None = None
        self._workforce: Workforce | None = None
        self._prober: Prober | None = None

    # What the admin API reads

    @property
    def rules(self) -> RulesSpec:
        assert self._loaded is not None and self._loaded.rules is not None
        return self._loaded.rules

    @property
    def rules_number(self) -> int:
        return self._workforce.number if self._workforce is not None else 1

    @property
    def rule_files(self) -> list[str]:
        return [str(file) for file in self._loaded.files] if self._loaded is not None else []

    async def exposition(self) -> ExpositionState:
        """All counters, as fresh as the workers answer."""
        workforce = self._workforce
        assert workforce is not None and self._prober is not None
        await workforce.count()
        return ExpositionState(
            series=workforce.tally.series(),
            connections=workforce.tally.connections,
            health=self._prober.health,
            breakers_open=workforce.tally.breakers_open(),
            rules_number=workforce.number,
            reloads_ok=self._reloads_ok,
            reloads_refused=self._reloads_refused,
            workers=workforce.num_serving,
            worker_restarts=workforce.restarts,
            version=version("pointsman"),
        )

    # Running

    async def run(self, loaded: LoadedRules) -> int:
        """Serve until a signal says stop; returns the exit status.

        Raises: PortError, StartError.
        """
        self._loaded = loaded
        self.problems = [str(problem) for problem in loaded.problems]
        settings = self._settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop_signals.put_nowait, number)
        http = ReservedPort(settings.host, settings.http_port, "--http-port")
        admin = ReservedPort(settings.admin_host, settings.admin_port, "--admin-port")
        self._prober = prober = Prober(self._health_changed)
        self._workforce = workforce = Workforce(settings, self.rules, prober.health, http, self._worker_command)
        server = admin_server(make_app(self), settings.admin_host, admin.port)
        background: list[asyncio.Task[None]] = []
        try:
            prober.use(self.rules.engines)
            await workforce.start()
            admin.close()
            background = [loop.create_task(work) for work in (server.serve(), self._keep_watch(), self._keep_count())]
            await prober.first_round(_FIRST_PROBES_SECONDS)
            while not server.started and not background[0].done():
                await asyncio.sleep(0.01)
            loop.add_signal_handler(signal.SIGHUP, self.reload)
            addresses = Addresses(settings.host, http.port, settings.admin_host, admin.port)
            self._announce(addresses)
            return await self._until_stopped()
        finally:
            if self._ready_file is not None:
                self._ready_file.unlink(missing_ok=True)
            workforce.kill()
            server.should_exit = True
            for task in background[1:]:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
            await prober.close()
            http.close()

    def reload(self) -> None:
        """Read the rule files again; a mistake in them leaves the rules in force as they are."""
        loaded = load_rules(self._paths)
        unusable = unusable_files(loaded.rules) if loaded.rules is not None else []
        self.problems = [*map(str, loaded.problems), *unusable]
        for problem in self.problems:
            _log.warning("%s", problem)
        if loaded.rules is None or unusable:
            self._reloads_refused += 1
            _log.error("the new rules are refused; rules %d stay in force", self.rules_number)
            return
        assert self._workforce is not None and self._prober is not None
        self._reloads_ok += 1
        if loaded.rules.digest == self.rules.digest:
            _log.info("the rules have not changed; rules %d stay in force", self.rules_number)
            return
        self._loaded = loaded
        self._workforce.use_rules(loaded.rules)
        self._prober.use(loaded.rules.engines)
        _log.info("rules %d are in force (%s)", self._workforce.number, loaded.rules.digest[:12])

    async def _until_stopped(self) -> int:
        await self._stop_signals.get()
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
        if self._ready_file is not None:
            # gRPC arrives with the next version; nothing listens for it yet.
            told = {"http": addresses.http_port, "grpc": None, "admin": addresses.admin_port, "pid": os.getpid()}
            partial = self._ready_file.with_name(self._ready_file.name + ".partial")
            partial.write_text(json.dumps(told) + "\n")
            partial.rename(self._ready_file)
        self._ready(addresses)

    def _health_changed(self, health: dict[tuple[str, str], Condition]) -> None:
        if self._workforce is not None:
            self._workforce.set_health(health)

    async def _keep_watch(self) -> None:
        """Notice changed rule files; reading them is work for a thread, so that a slow disk holds nobody up."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if await asyncio.to_thread(self._watch.changed):
                self.reload()

    async def _keep_count(self) -> None:
        """Have recent counters of every worker, for the case that it dies."""
        assert self._workforce is not None
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            await self._workforce.count()
