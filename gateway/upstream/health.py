"""Active health checks: the control process asks every endpoint, now and then, whether it is ready, what it serves and
how busy it is."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.config.specs import EngineSpec, HealthSpec
from gateway.protocol.engine_load import Load, Readiness
from gateway.upstream.probe import EndpointProbe, asker_for

_log = logging.getLogger(__name__)

# Probes of many endpoints with the same interval spread out by as much of it.
_JITTER = 0.1
# Models come and go by an operator's hand, and their lists may be long: every so many probes is often enough.
_PROBES_PER_DISCOVERY = 5
# Loads of many endpoints come one by one: those of so many seconds travel together.
_GATHER_SECONDS = 0.2
# Between probes that are to reach a verdict soon.
_HURRY_SECONDS = 0.05

Key = tuple[str, str]  # engine name, endpoint url


@dataclass(frozen=True, slots=True)
class Findings:
    """What is known of all endpoints, by engine and url. Endpoints that no probe has reached a verdict on have no
    condition; those that do not tell their models have none here. `loads` are those told since the last findings, None
    where an endpoint has stopped to tell."""

    conditions: Mapping[Key, Readiness] = field(default_factory=dict)
    models: Mapping[Key, frozenset[str]] = field(default_factory=dict)
    loads: Mapping[Key, Load | None] = field(default_factory=dict)


class EndpointHealth:
    """An endpoint's condition: the first probe decides, later ones only when enough in a row say something else.

    It gets worse to what the last `unhealthy_after` probes all found at least, and better to what the last
    `healthy_after` found at most: one lost answer amid those of a server that loads a model does not count as three,
    and a server that was gone and now answers, though not ready, is there again at once.
    """

    __slots__ = ("_found", "_spec", "condition")

    def __init__(self, spec: HealthSpec) -> None:
        self._spec = spec
        self._found: deque[Readiness] = deque(maxlen=max(spec.unhealthy_after, spec.healthy_after))
        self.condition: Readiness | None = None

    def __repr__(self) -> str:
        return f"<EndpointHealth {self.condition}, last {[found.value for found in self._found]}>"

    def observe(self, found: Readiness) -> bool:
        """Count a probe; tells whether the endpoint's condition has changed with it."""
        self._found.append(found)
        before = self.condition
        if before is None:
            self.condition = found
            return True
        mildest = self._last(self._spec.unhealthy_after, min)
        worst = self._last(self._spec.healthy_after, max)
        if mildest is not None and mildest.badness > before.badness:
            self.condition = mildest
        elif worst is not None and worst.badness < before.badness:
            self.condition = worst
        return self.condition is not before

    def _last(self, number: int, pick: Callable[..., Readiness]) -> Readiness | None:
        """The mildest or worst of so many last probes; None where there were fewer."""
        last = list(self._found)[-number:]
        return pick(last, key=lambda found: found.badness) if len(last) == number else None


class _Probe:
    """The probing of one endpoint; `engine` is kept to see whether a new declaration changes anything."""

    def __init__(self, engine: EngineSpec, key: Key) -> None:
        self.engine = _relevant(engine)
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
    """Probes all endpoints of the rules; `changed` gets what is known of all whenever something has changed for one."""

    def __init__(self, changed: Callable[[Findings], None]) -> None:
        self._changed = changed
        self._probes: dict[Key, _Probe] = {}
        self._fresh: dict[Key, Load | None] = {}  # loads that nobody has been told of
        self._gathering: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Prober of {len(self._probes)} endpoints>"

    @property
    def health(self) -> dict[Key, Readiness]:
        """By engine and endpoint; those that no probe has reached a verdict on are left out."""
        found = {key: probe.health.condition for key, probe in self._probes.items()}
        return {key: condition for key, condition in found.items() if condition is not None}

    @property
    def models(self) -> dict[Key, frozenset[str]]:
        """What those serve that tell it."""
        return {key: probe.models for key, probe in self._probes.items() if probe.models is not None}

    @property
    def loads(self) -> dict[Key, Load]:
        """How busy those are that tell it."""
        return {key: probe.load for key, probe in self._probes.items() if probe.load is not None}

    def use(self, engines: Mapping[str, EngineSpec]) -> None:
        """Probe the endpoints of these engines; what is known of those that stay as they are is kept."""
        wanted = {
            (name, endpoint.url): engine
            for name, engine in engines.items()
            if engine.health.interval
            for endpoint in engine.endpoints
        }
        for key, probe in list(self._probes.items()):
            if key not in wanted or probe.engine != _relevant(wanted[key]):
                del self._probes[key]
                self._fresh.pop(key, None)
                if probe.task is not None:
                    probe.task.cancel()
        for key, engine in wanted.items():
            if key not in self._probes:
                probe = self._probes[key] = _Probe(engine, key)
                probe.task = asyncio.get_running_loop().create_task(self._keep_probing(probe))
        self._tell()

    async def first_round(self, timeout: float) -> None:
        """Wait until each endpoint has been asked once, or the time (seconds) is over."""
        waiting = [asyncio.create_task(probe.had_first.wait()) for probe in self._probes.values()]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=timeout)
            for task in late:
                task.cancel()

    def look(self, key: Key) -> None:
        """Probe an endpoint now, and as often as a verdict takes: somebody says that its condition has changed."""
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
        """Ask on and on; what goes wrong with it is told as the endpoint's condition, and asked again."""
        while True:
            try:
                await self._ask_again_and_again(probe)
            except Exception as error:  # a certificate file that cannot be read may be there later
                self._observe(probe, Readiness.DOWN, f": cannot be probed: {error}")
                probe.had_first.set()
                await asyncio.sleep(_jittered(probe.engine.health.interval))

    async def _ask_again_and_again(self, probe: _Probe) -> None:
        asker = asker_for(probe.engine, probe.url)
        until_discovery = 0
        try:
            while True:
                found = await asker.ask()
                self._observe(probe, found, f": {asker.failure}" if found is Readiness.DOWN else "")
                is_there = found is not Readiness.DOWN
                until_discovery = max(0, until_discovery - 1) if is_there else 0  # it may come back as another
                if is_there and not until_discovery and await self._learn_models(probe, asker):
                    until_discovery = _PROBES_PER_DISCOVERY
                self._learn_load(probe, await asker.load() if is_there else None)
                probe.had_first.set()
                await self._pause(probe)
        finally:
            await asker.close()

    async def _pause(self, probe: _Probe) -> None:
        probe.hurried = max(0, probe.hurried - 1)
        seconds = _HURRY_SECONDS if probe.hurried else _jittered(probe.engine.health.interval)
        with suppress(TimeoutError):
            await asyncio.wait_for(probe.is_called.wait(), seconds)
        probe.is_called.clear()

    async def _learn_models(self, probe: _Probe, asker: EndpointProbe) -> bool:
        """Ask for the models; where it does not tell, what it told before still holds."""
        models = await asker.models()
        if models is not None and models != probe.models:
            probe.models = models
            self._tell()
        return models is not None

    def _learn_load(self, probe: _Probe, load: Load | None) -> None:
        """An idle endpoint that stays idle is no news; a busy one is, since the workers reckon from when they hear."""
        before, probe.load = probe.load, load
        if load == before and (load is None or not load.outstanding):
            return
        self._fresh[probe.key] = load
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(_GATHER_SECONDS, self._tell)

    def _tell(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        fresh, self._fresh = self._fresh, {}
        self._changed(Findings(self.health, self.models, fresh))

    def _observe(self, probe: _Probe, found: Readiness, why: str = "") -> None:
        was_known = probe.health.condition is not None
        has_changed = probe.health.observe(found)
        if not has_changed:
            return
        probe.hurried = 0
        if was_known or found is not Readiness.READY:
            _log.warning("%s of engine '%s' is %s%s", probe.url, probe.engine.name, found.value, why)
        self._tell()


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1 - _JITTER, 1 + _JITTER)


def _relevant(engine: EngineSpec) -> EngineSpec:
    """The engine with only what probing depends on; two of these differ where its probes would."""
    return EngineSpec(
        engine.name,
        (),
        protocol=engine.protocol,
        base_path=engine.base_path,
        load=engine.load,
        health=engine.health,
        tls=engine.tls,
        headers=engine.headers,
        api_key=engine.api_key,
    )
