"""The metrics of the engines, read where the gateway's own are asked for, and added up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from string import punctuation
from typing import NamedTuple
from urllib.parse import quote

from gateway.config.engine_specs import EndpointSpec, EngineSpec
from gateway.net.slices import run_in_slices
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.metrics_sum import STEP, MetricFamily, Series, Steps, read_families, sum_families, write_families
from gateway.upstream.endpoint_client import fetch
from gateway.upstream.engine import extra_fields
from gateway.upstream.probe import metrics_endpoint

_log = logging.getLogger(__name__)

_MAX_CALLS = 64  # at once, each on a connection that is closed afterwards
# Of servers that are gone: models come and go, and names of metrics are the engines' own.
_MAX_CARRIED = 100_000

Families = Mapping[str, MetricFamily]
Key = tuple[str, str]  # a server's URL and the path of its metrics: engines may share them


class _Server:
    """One server's metrics: the last that it reported."""

    def __init__(self, engine: EngineSpec, spec: EndpointSpec) -> None:
        """Raises: OSError or ssl.SSLError where a certificate file cannot be read."""
        self.spec = engine.metrics
        self.settings = _settings(engine, spec)
        self.fields = extra_fields(engine)
        endpoint, path = metrics_endpoint(engine, spec, self.spec.path or "")
        assert endpoint is not None
        self.endpoint = endpoint
        self.target = quote(path, safe=punctuation).encode("ascii")
        self.names: frozenset[str] = frozenset()  # globs
        self.families: Families = {}
        self.is_there = False
        self.failed_at = 0.0  # when it was called the last time, where it did not answer

    def is_wanted(self, family: str) -> bool:
        return not family.startswith("pointsman_") and any(fnmatchcase(family, name) for name in self.names)

    def show(self, names: frozenset[str]) -> None:
        if names != self.names:
            self.names = names
            self.families = {name: family for name, family in self.families.items() if self.is_wanted(name)}

    async def fetch(self) -> str:
        """Raises: GatewayError."""
        timeout, limit = self.spec.timeout, self.spec.max_bytes
        try:
            reply = await fetch(
                self.endpoint, "GET", self.target, b"", fields=self.fields, timeout=timeout, max_bytes=limit
            )
        finally:
            self.endpoint.close_idle_connections()
        if not reply.is_good:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the status of its metrics is {reply.status}")
        return reply.body.decode("utf-8", "replace")

    def counts(self) -> Families:
        """What stays true while the server does not answer."""
        return {
            name: MetricFamily(family.help, family.kind, values)
            for name, family in self.families.items()
            if (values := {series: value for series, value in family.values.items() if family.is_cumulative(series)})
        }


def _settings(engine: EngineSpec, spec: EndpointSpec) -> object:
    """All that a server is called with."""
    return replace(engine.metrics, names=()), extra_fields(engine), engine.tls, spec.host


class _Count(NamedTuple):
    """One series that adds up, in two reports of its server; `after` is None where the second does not have it."""

    name: str
    family: MetricFamily
    series: Series
    before: float
    after: float | None


def _compare(before: Families, after: Families) -> Steps[list[_Count]]:
    counts: list[_Count] = []
    for name, family in before.items():
        values = after[name].values if name in after else {}
        for number, (series, value) in enumerate(family.values.items()):
            if number % STEP == 0:
                yield
            if family.is_cumulative(series):
                counts.append(_Count(name, family, series, value, values.get(series)))
    return counts


class EngineMetrics:
    """Sums the metrics of all servers whose engines declare `metrics.path`.

    A sum must not fall when a server restarts or leaves the rules, which Prometheus would take for a restart of all:
    what it had counted is carried on. Where it was only not shown for a while, and comes back, that is taken back.
    """

    def __init__(self) -> None:
        self._servers: dict[Key, _Server] = {}
        self._carried: dict[str, MetricFamily] = {}
        self._lost: dict[Key, dict[tuple[str, Series], float]] = {}  # what each server may show again, of `_carried`
        self._reading: asyncio.Task[bytes] | None = None
        self._parsing = asyncio.Lock()  # one text at a time: slices add up

    async def text(self, engines: Mapping[str, EngineSpec]) -> bytes:
        """The metrics of all servers as those of one, in Prometheus' text; empty where no engine declares any. Calls
        share a reading under way."""
        if self._reading is None or self._reading.done():
            removed = self._use(engines)
            if not self._servers and not self._carried and not removed:
                return b""
            self._reading = asyncio.get_running_loop().create_task(self._read_all(removed))
        return await asyncio.shield(self._reading)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        for server in self._servers.values():
            server.endpoint.retire()

    def _use(self, engines: Mapping[str, EngineSpec]) -> dict[Key, _Server]:
        """Take over the rules; returns the servers that they no longer name."""
        wanted: dict[Key, tuple[EngineSpec, EndpointSpec]] = {}
        names: dict[Key, frozenset[str]] = {}
        for engine in engines.values():
            path = engine.metrics.path
            for endpoint in engine.endpoints if path is not None else ():
                if path is not None and (endpoint.speaks_rest or path.startswith(":")):
                    key = endpoint.url, path
                    wanted.setdefault(key, (engine, endpoint))
                    names[key] = names.get(key, frozenset()).union(engine.metrics.names)
        removed: dict[Key, _Server] = {}
        for key, server in list(self._servers.items()):
            if key not in wanted or server.settings != _settings(*wanted[key]):
                removed[key] = self._servers.pop(key)
                server.endpoint.retire()
        moved = {key[0]: key for key in removed if key not in wanted}  # to another path
        for key, (engine, endpoint) in wanted.items():
            if key not in self._servers:
                try:
                    self._servers[key] = server = _Server(engine, endpoint)
                except OSError as error:  # a certificate file may be there later
                    _log.warning("the metrics of engine '%s' cannot be read: %s", engine.name, error)
                    continue
                before = removed.pop(key if key in removed else moved.get(key[0], key), None)
                server.families = before.families if before is not None else {}
            self._servers[key].show(names[key])
        return removed

    async def _read_all(self, removed: Mapping[Key, _Server]) -> bytes:
        for key, server in removed.items():
            self._carry(key, await run_in_slices(_compare(server.families, {})), {})
        servers = list(self._servers.values())
        # Those that do not answer come last, so that they keep no others out.
        waiting = iter(sorted(self._servers.items(), key=lambda item: item[1].failed_at))

        async def read_waiting() -> None:
            for key, server in waiting:
                await self._read(key, server)

        for server in servers:
            server.is_there = False
        try:
            async with asyncio.timeout(max((server.spec.timeout for server in servers), default=0.0)):
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(_MAX_CALLS, len(servers))):
                        group.create_task(read_waiting())
        except TimeoutError:
            _log.debug("the metrics of %d servers are late", sum(not server.is_there for server in servers))
        self._forget_oldest()
        reported = (server.families if server.is_there else server.counts() for server in servers)
        return await run_in_slices(write_families(await run_in_slices(sum_families(reported, self._carried))))

    async def _read(self, key: Key, server: _Server) -> None:
        server.failed_at = asyncio.get_running_loop().time()
        try:
            text = await server.fetch()
        except GatewayError as error:
            _log.debug("the metrics of %s cannot be read: %s", server.endpoint.url, error.message)
            return
        async with self._parsing:
            families = await run_in_slices(read_families(text, server.is_wanted))
            if not families:  # it starts or stops
                return
            counts = await run_in_slices(_compare(server.families, families))
        self._carry(key, counts, families)
        server.families, server.is_there, server.failed_at = families, True, 0.0

    def _carry(self, key: Key, counts: Sequence[_Count], after: Families) -> None:
        """Keep the counts that a server no longer reports: all of them where it has restarted."""
        lost = self._lost.pop(key, {})
        if any(count.after is not None and count.after < count.before for count in counts):
            lost, missing = {}, counts
        else:
            lost = self._take_back(lost, after)
            missing = [count for count in counts if count.after is None]
            lost.update({(count.name, count.series): count.before for count in missing})
        for name, family, series, value, _ in missing:
            carried = self._carried.setdefault(name, MetricFamily(family.help, family.kind)).values
            carried[series] = carried.get(series, 0.0) + value
        if lost:
            self._lost[key] = lost

    def _take_back(self, lost: Mapping[tuple[str, Series], float], after: Families) -> dict[tuple[str, Series], float]:
        """What was carried for series that a server shows again, and has not counted from zero; the rest stays lost."""
        left: dict[tuple[str, Series], float] = {}
        for (name, series), value in lost.items():
            new = after[name].values.get(series) if name in after else None
            if new is None:
                left[name, series] = value
            elif new >= value:
                carried = self._carried[name].values
                rest = carried.pop(series, 0.0) - value
                if rest > 0:  # of other servers
                    carried[series] = rest
        return left

    def _forget_oldest(self) -> None:
        num_lost = sum(map(len, self._lost.values()))
        while num_lost > _MAX_CARRIED:
            num_lost -= len(self._lost.pop(next(iter(self._lost))))
        if sum(len(family.values) for family in self._carried.values()) > _MAX_CARRIED:
            _log.warning("counts of servers that are gone are dropped: they are more than %d series", _MAX_CARRIED)
            self._carried.clear()
            self._lost.clear()
