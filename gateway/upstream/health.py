"""Active health checks: the control process probes the readiness, the models and the load of every endpoint."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter

from gateway.config.specs import EngineSpec, HealthSpec
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.probe import EndpointProbe

_log = logging.getLogger(__name__)

# Probes of many endpoints with the same interval spread out by as much of it.
_JITTER = 0.1
# Operators change the models of an endpoint, and lists of them may be long: probes between two queries of the list.
_PROBES_PER_DISCOVERY = 5
# Loads of many endpoints are collected for this long, and then sent together.
_GATHER_SECONDS = 0.2
# Between probes that are to reach a result soon.
_HURRY_SECONDS = 0.05

Key = tuple[str, str]  # engine name, endpoint url


@dataclass(frozen=True, slots=True)
class Findings:
    """The observed state of all endpoints, by engine and URL. Endpoints without a completed probe have no condition;
    those that do not list their models are absent from `models`. `loads` are the reports since the last findings, None
    where an endpoint has stopped to report."""

    conditions: Mapping[Key, Readiness] = field(default_factory=dict)
    models: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    loads: Mapping[Key, Load | None] = field(default_factory=dict)


class EndpointHealth:
    """An endpoint's condition: the first probe decides, later ones only when enough in a row differ.

    It gets worse to the mildest of the last `unhealthy_after` results, and better to the worst of the last
    `healthy_after`: a server that was down and now replies, though not ready, is no longer down.
    """

    def __init__(self, spec: HealthSpec) -> None:
        self._spec = spec
        self._results: deque[Readiness] = deque(maxlen=max(spec.unhealthy_after, spec.healthy_after))
        self.condition: Readiness | None = None

    def observe(self, result: Readiness) -> bool:
        """Count a probe; returns whether it has changed the condition."""
        self._results.append(result)
        before = self.condition
        if before is None:
            self.condition = result
            return True
        mildest = self._last(self._spec.unhealthy_after, min)
        worst = self._last(self._spec.healthy_after, max)
        if mildest is not None and mildest.badness > before.badness:
            self.condition = mildest
        elif worst is not None and worst.badness < before.badness:
            self.condition = worst
        return self.condition is not before

    def _last(self, number: int, pick: Callable[..., Readiness]) -> Readiness | None:
        """The mildest or worst of the last `number` results; None where there were fewer."""
        last = list(self._results)[-number:]
        return pick(last, key=lambda each: each.badness) if len(last) == number else None


class _Probe:
    """The probing of one endpoint."""

    def __init__(self, engine: EngineSpec, key: Key) -> None:
        self.engine = engine
        self.key = key
        self.health = EndpointHealth(engine.health)
        self.url = key[1]
        self.models: frozenset[str] | None = None
        self.load: Load | None = None
        self.had_first = asyncio.Event()
        self.is_called = asyncio.Event()
        self.hurried = 0  # probes that follow each other without the usual pause
        self.task: asyncio.Task[None] | None = None


class Prober:
    """Probes all endpoints of the rules; `changed` gets the state of all whenever that of one has changed."""

    def __init__(self, changed: Callable[[Findings], None]) -> None:
        self._changed = changed
        self._probes: dict[Key, _Probe] = {}
        self._fresh: dict[Key, Load | None] = {}  # loads that are not reported yet
        self._gathering: asyncio.TimerHandle | None = None

    @property
    def health(self) -> dict[Key, Readiness]:
        """By engine and endpoint; those that no probe has reached a verdict on are left out."""
        conditions = {key: probe.health.condition for key, probe in self._probes.items()}
        return {key: condition for key, condition in conditions.items() if condition is not None}

    @property
    def models(self) -> dict[Key, frozenset[str]]:
        return {key: probe.models for key, probe in self._probes.items() if probe.models is not None}

    @property
    def loads(self) -> dict[Key, Load]:
        return {key: probe.load for key, probe in self._probes.items() if probe.load is not None}

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Probe the endpoints of these engines; the state of unchanged ones stays."""
        wanted = {
            (name, endpoint.url): engine
            for name, engine in engines.items()
            if engine.health.interval
            for endpoint in engine.endpoints
        }
        for key, probe in list(self._probes.items()):
            if key not in wanted or _relevant(probe.engine) != _relevant(wanted[key]):
                del self._probes[key]
                self._fresh.pop(key, None)
                if probe.task is not None:
                    probe.task.cancel()
        for key, engine in wanted.items():
            if key not in self._probes:
                probe = self._probes[key] = _Probe(engine, key)
                probe.task = asyncio.get_running_loop().create_task(self._keep_probing(probe))
        self._report()

    async def first_round(self, timeout: float) -> None:
        """Wait until each endpoint has been probed once, or for `timeout` seconds."""
        waiting = [asyncio.create_task(probe.had_first.wait()) for probe in self._probes.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout)
            for task in late:
                task.cancel()

    def look(self, key: Key) -> None:
        """Probe an endpoint now, as often as a result takes: its condition may have changed."""
        probe = self._probes.get(key)
        if probe is not None:
            spec = probe.engine.health
            probe.hurried = max(spec.unhealthy_after, spec.healthy_after)
            probe.is_called.set()

    async def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        tasks = [probe.task for probe in self._probes.values() if probe.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_probing(self, probe: _Probe) -> None:
        """Probe for ever; an error is reported as the endpoint's condition."""
        while True:
            try:
                await self._probe_in_turns(probe)
            except Exception as error:  # a certificate file that cannot be read may be there later
                self._observe(probe, Readiness.DOWN, f": cannot be probed: {error}")
                probe.had_first.set()
                await asyncio.sleep(_jittered(probe.engine.health.interval))

    async def _probe_in_turns(self, probe: _Probe) -> None:
        checker = EndpointProbe(probe.engine, probe.url)
        until_discovery = 0
        try:
            while True:
                result = await checker.check()
                self._observe(probe, result, f": {checker.failure}" if result is Readiness.DOWN else "")
                is_there = result is not Readiness.DOWN
                until_discovery = max(0, until_discovery - 1) if is_there else 0  # it may come back as another
                models = await checker.models() if is_there and not until_discovery else None
                if models is not None:
                    until_discovery = _PROBES_PER_DISCOVERY
                    if models != probe.models:
                        probe.models = models
                        self._report()
                self._update_load(probe, await checker.load() if is_there else None)
                probe.had_first.set()
                await self._pause(probe)
        finally:
            await checker.close()

    async def _pause(self, probe: _Probe) -> None:
        probe.hurried = max(0, probe.hurried - 1)
        seconds = _HURRY_SECONDS if probe.hurried else _jittered(probe.engine.health.interval)
        with suppress(TimeoutError):
            await asyncio.wait_for(probe.is_called.wait(), seconds)
        probe.is_called.clear()

    def _update_load(self, probe: _Probe, load: Load | None) -> None:
        """Report a load, unless the endpoint stays idle: that of a busy one must be renewed."""
        before, probe.load = probe.load, load
        if load == before and (load is None or not load.outstanding):
            return
        self._fresh[probe.key] = load
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._report)

    def _report(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        fresh, self._fresh = self._fresh, {}
        self._changed(Findings(self.health, self.models, fresh))

    def _observe(self, probe: _Probe, result: Readiness, why: str = "") -> None:
        had_condition = probe.health.condition is not None
        has_changed = probe.health.observe(result)
        if not has_changed:
            return
        probe.hurried = 0
        if had_condition or result is not Readiness.READY:
            _log.warning("%s of engine '%s' is %s%s", probe.url, probe.engine.name, result.value, why)
        self._report()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)


# What probing depends on.
_relevant = attrgetter("protocol", "base_path", "load", "health", "tls", "headers", "api_key")
