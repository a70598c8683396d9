"""The rules in force and their endpoints, in one process: a data plane that follows files, sources and probes."""

from __future__ import annotations

import asyncio
import logging

from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec, with_endpoints
from gateway.dataplane.context.data_plane import DataPlane
from gateway.discovery.discovery import Discovery, Endpoints
from gateway.epp.rule_support import supported
from gateway.epp.settings import PickerSettings
from gateway.net.tls_files import reload_changed
from gateway.protocol.engine_load import Readiness
from gateway.supervision.rulebook import Rulebook
from gateway.upstream.health import Findings, Prober

_log = logging.getLogger("pointsman.epp")

_FIRST_PROBES_SECONDS = 2.0
_FIRST_ANSWERS_SECONDS = 5.0
_RELOAD_SECONDS = 5.0


class FleetWatch:
    """The rules in force and their endpoints, in one process: a data plane that follows files, sources and probes."""

    def __init__(self, settings: PickerSettings, book: Rulebook, rules: RulesSpec) -> None:
        self.book = book
        self._is_closed = settings.is_closed
        self._rules = rules  # those in force, reduced to what a picker follows
        self.plane = DataPlane(settings.of_plane, rules, book.number, {})
        self._discovery = Discovery(self._endpoints_changed)
        self.prober = Prober(self._health_changed, settings.probe_connections)
        self.reloads_refused = 0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def sources(self) -> Discovery:
        return self._discovery

    async def start(self) -> None:
        """Return once the endpoints have been found and probed, as far as they answer."""
        self._discovery.use(self._rules.engines)
        await self._discovery.first_answers(_FIRST_ANSWERS_SECONDS)
        self.prober.use(self._engines.engines)
        await self.prober.first_round(_FIRST_PROBES_SECONDS)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow_files()), loop.create_task(self._follow_certificates())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._discovery.close()
        await self.prober.close()
        self.plane.close()

    @property
    def _engines(self) -> RulesSpec:
        return with_endpoints(self._rules, self._discovery.endpoints)

    def _endpoints_changed(self, changes: Endpoints) -> None:
        if changes:
            self.plane.set_endpoints(changes)
        self.plane.set_drained(frozenset(self._discovery.leaving))
        self.prober.use(self._engines.engines)

    def _health_changed(self, findings: Findings) -> None:
        self.plane.update_health(findings.conditions, findings.models, findings.loads)
        self._discovery.look(key for key, each in findings.conditions.items() if each is Readiness.DOWN)

    async def _follow_files(self) -> None:
        while True:
            rules = await self.book.next()
            found = supported(LoadedRules(rules, (), ()), is_closed=self._is_closed)
            for problem in found.problems:
                _log.warning("%s", problem)
            if found.rules is None:
                self.reloads_refused += 1
                _log.error("the new rules are not for a picker: the earlier ones stay in force")
                continue
            self._rules = found.rules
            self._discovery.use(self._rules.engines)
            self.plane.use_rules(self._rules, self.book.number)
            self._endpoints_changed(dict(self._discovery.endpoints))
            _log.info("rules %d are in force (%s)", self.book.number, rules.digest[:12])

    async def _follow_certificates(self) -> None:
        while True:
            await asyncio.sleep(_RELOAD_SECONDS)
            reload_changed()  # of the probes and the listener
