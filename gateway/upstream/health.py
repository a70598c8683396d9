"""Active health checks: the control process probes the readiness, the models and the load of every endpoint."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from gateway.config.engine_specs import EngineSpec, HealthSpec
from gateway.protocol.advertised_models import AdvertisedModels
from gateway.protocol.engine_load import Load, Readiness
from gateway.protocol.errors import GatewayError
from gateway.upstream.probe import EndpointProbe
from gateway.upstream.probe_connections import ProbeConnections

_log = logging.getLogger(__name__)

# Probes of many endpoints with the same interval spread out by as much of it.
_JITTER = 0.1
# Operators change the models of an endpoint, and lists of them may be long: probes between two queries of the list.
_PROBES_PER_DISCOVERY = 5
# Loads of many endpoints are collected for this long, and then sent together; changed conditions, which matter at once,
# for as long after the last ones.
_GATHER_SECONDS = 0.2
_GAP_SECONDS = 0.05
# Between probes that are to reach a result soon.
_HURRY_SECONDS = 0.05
# Probes of all endpoints, after other replicas' findings may have been missed, spread out by so much.
_SPREAD_SECONDS = 2.0

Key = tuple[str, str]  # engine name, endpoint url


@dataclass(frozen=True, slots=True)
class Findings:
    """What has changed since the last findings, by engine and URL; None where it is no longer known, since rules have
    changed, or an endpoint has stopped to report its load."""

    conditions: Mapping[Key, Readiness | None] = field(default_factory=dict)
    models: Mapping[Key, AdvertisedModels | None] = field(default_factory=dict)
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

    def __init__(self, engine: EngineSpec, key: Key, host: str | None) -> None:
        self.engine = engine
        self.key = key
        self.host = host  # the endpoint's name, where the URL has its address
        self.health = EndpointHealth(engine.health)
        self.url = key[1]
        self.models: AdvertisedModels | None = None
        self.load: Load | None = None
        self.had_first = asyncio.Event()
        self.pause: asyncio.Future[None] | None = None  # until the next probe
        self.readers: list[asyncio.Future[None]] = []  # wait for its list of models to be read
        self.hurried = 0  # probes that follow each other without the usual pause
        self.task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """Probe now."""
        if self.pause is not None and not self.pause.done():
            self.pause.set_result(None)


class Prober:
    """Probes all endpoints of the rules, over `max_connections` connections; `changed` gets what has changed."""

    def __init__(self, changed: Callable[[Findings], None], max_connections: int = 1024) -> None:
        self._changed = changed
        self._connections = ProbeConnections(max_connections)
        self._probes: dict[Key, _Probe] = {}
        # What is not reported yet
        self._conditions: dict[Key, Readiness | None] = {}
        self._models: dict[Key, AdvertisedModels | None] = {}
        self._loads: dict[Key, Load | None] = {}
        self._reported_at = 0.0
        self._timer: asyncio.TimerHandle | None = None  # of the next report
        self._due = 0.0  # when that is

    @property
    def health(self) -> dict[Key, Readiness]:
        """By engine and endpoint; those that no probe has reached a verdict on are left out."""
        conditions = {key: probe.health.condition for key, probe in self._probes.items()}
        return {key: condition for key, condition in conditions.items() if condition is not None}

    @property
    def models(self) -> dict[Key, AdvertisedModels]:
        return {key: probe.models for key, probe in self._probes.items() if probe.models is not None}

    @property
    def loads(self) -> dict[Key, Load]:
        return {key: probe.load for key, probe in self._probes.items() if probe.load is not None}

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Probe the endpoints of these engines; the state of unchanged ones stays."""
        wanted = {
            (name, endpoint.url): (engine, endpoint.host)
            for name, engine in engines.items()
            if engine.health.interval
            for endpoint in engine.endpoints
        }
        for key, probe in list(self._probes.items()):
            engine, host = wanted.get(key, (None, None))
            if engine is None or _relevant(probe.engine) != _relevant(engine) or probe.host != host:
                del self._probes[key]
                self._loads.pop(key, None)
                self._conditions[key] = self._models[key] = None
                if probe.task is not None:
                    probe.task.cancel()
            elif _fields(probe.engine) != _fields(engine):  # a rotated credential: the endpoint is the same
                probe.engine = engine
                if probe.task is not None:
                    probe.task.cancel()
                probe.task = asyncio.get_running_loop().create_task(self._keep_probing(probe))
        for key, (engine, host) in wanted.items():
            if key not in self._probes:
                probe = self._probes[key] = _Probe(engine, key, host)
                probe.task = asyncio.get_running_loop().create_task(self._keep_probing(probe))
        self._report()

    async def first_round(self, timeout: float) -> None:
        """Wait until each endpoint has been probed once, or for `timeout` seconds."""
        waiting = [asyncio.create_task(probe.had_first.wait()) for probe in self._probes.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout)
            for task in late:
                task.cancel()
        self._report()

    def look(self, key: Key) -> None:
        """Probe an endpoint now, as often as a result takes: its condition may have changed."""
        probe = self._probes.get(key)
        if probe is not None:
            spec = probe.engine.health
            # A probe that is under way may have begun before
            probe.hurried = max(spec.unhealthy_after, spec.healthy_after) + (probe.pause is None)
            probe.wake()

    async def look_at_models(self, keys: Iterable[Key], timeout: float) -> None:
        """Read the lists of these endpoints now, since other models may be there; return once `changed` has what has
        changed, or after so many seconds."""
        loop = asyncio.get_running_loop()
        readers = []
        urls = {url for _, url in keys}  # engines of other limits may stand for the same server
        for (_, url), probe in self._probes.items():
            if url in urls:
                readers.append(loop.create_future())
                probe.readers.append(readers[-1])
                probe.hurried = max(probe.hurried, 1 + (probe.pause is None))
                probe.wake()
        if readers:
            await asyncio.wait(readers, timeout=timeout)
            self._report()

    def look_at_all(self) -> None:
        """Probe all endpoints soon, but for those whose next probe is near: changes may have been missed."""
        for key, probe in self._probes.items():
            if probe.engine.health.interval > _SPREAD_SECONDS:
                asyncio.get_running_loop().call_later(random.uniform(0.0, _SPREAD_SECONDS), self.look, key)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
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
                if not isinstance(error, OSError):
                    _log.exception("the probe of %s of engine '%s' failed", probe.url, probe.engine.name)
                self._observe(probe, Readiness.DOWN, f": cannot be probed: {error}")
                await self._pause(probe)

    async def _probe_in_turns(self, probe: _Probe) -> None:
        checker = EndpointProbe(probe.engine, probe.url, probe.host)
        until_discovery = 0
        try:
            while True:
                async with self._connections.of(checker):
                    result = await checker.check()
                    self._observe(probe, result, f": {checker.failure}" if result is Readiness.DOWN else "")
                    is_there = result is not Readiness.DOWN
                    until_discovery = max(0, until_discovery - 1) if is_there else 0  # it may come back as another
                    readers, probe.readers = probe.readers, []
                    if is_there and (readers or not until_discovery):
                        until_discovery = _PROBES_PER_DISCOVERY
                        await self._discover(probe, checker)
                    for reader in readers:
                        if not reader.done():
                            reader.set_result(None)
                    self._update_load(probe, await checker.load() if is_there else None)
                await self._pause(probe)
        finally:
            await checker.close()
            self._connections.forget(checker)

    async def _discover(self, probe: _Probe, checker: EndpointProbe) -> None:
        try:
            models = await checker.models()
        except GatewayError as error:
            _log.debug("%s does not list its models: %s", probe.url, error.message)
            return
        if models != probe.models:
            self._models[probe.key] = probe.models = models
            self._report_within(0.0)

    async def _pause(self, probe: _Probe) -> None:
        interval = probe.engine.health.interval
        probe.hurried = max(0, probe.hurried - 1)
        if probe.hurried:
            seconds = _HURRY_SECONDS
        elif probe.had_first.is_set():
            seconds = _jittered(interval)
        else:  # all endpoints had their first probe at once: from now on they are spread
            seconds = random.uniform(0.0, interval)
        probe.had_first.set()
        loop = asyncio.get_running_loop()
        probe.pause = loop.create_future()
        timer = loop.call_later(seconds, probe.wake)
        try:
            await probe.pause
        finally:
            timer.cancel()
            probe.pause = None

    def _update_load(self, probe: _Probe, load: Load | None) -> None:
        """Report a load, unless the endpoint stays idle: that of a busy one must be renewed."""
        before, probe.load = probe.load, load
        if load == before and (load is None or not load.outstanding):
            return
        self._loads[probe.key] = load
        self._report_within(_GATHER_SECONDS)

    def _report_within(self, seconds: float) -> None:
        """Report what has changed in so many seconds, or some time after the last report if that is later."""
        loop = asyncio.get_running_loop()
        due = max(loop.time() + seconds, self._reported_at + _GAP_SECONDS)
        if self._timer is not None:
            if self._due <= due:
                return
            self._timer.cancel()
        self._due = due  # uvloop's handle of a call that is due at once does not have it
        self._timer = loop.call_at(due, self._report)

    def _report(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        findings = Findings(self._conditions, self._models, self._loads)
        self._conditions, self._models, self._loads = {}, {}, {}
        if findings != Findings():
            self._reported_at = asyncio.get_running_loop().time()
            self._changed(findings)

    def _observe(self, probe: _Probe, result: Readiness, why: str = "") -> None:
        had_condition = probe.health.condition is not None
        has_changed = probe.health.observe(result)
        if not has_changed:
            return
        probe.hurried = 0
        if had_condition or result is not Readiness.READY:
            _log.warning("%s of engine '%s' is %s%s", probe.url, probe.engine.name, result.value, why)
        self._conditions[probe.key] = probe.health.condition
        self._report_within(0.0)


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)


# What a condition depends on, and what probes send.
_relevant = attrgetter("protocol", "base_path", "load", "health", "tls", "models.source", "models.path")
_fields = attrgetter("headers", "api_key")
