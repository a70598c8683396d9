"""The metrics of the engines, read where the gateway's own are asked for, and added up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from fnmatch import fnmatchcase
from string import punctuation
from urllib.parse import quote

from gateway.config.specs import EngineSpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.metrics_sum import MetricFamily, read_families, sum_families, write_families
from gateway.upstream.endpoint_client import fetch
from gateway.upstream.engine import extra_fields
from gateway.upstream.probe import metrics_endpoint

_log = logging.getLogger(__name__)

_MAX_CALLS = 64  # at once
# Of servers that are gone: models come and go, and names of metrics are the engines' own.
_MAX_CARRIED = 100_000

Families = Mapping[str, MetricFamily]


class _Server:
    """One server's metrics: the last that it reported."""

    def __init__(self, engine: EngineSpec, url: str) -> None:
        """Raises: OSError or ssl.SSLError where a certificate file cannot be read."""
        self.spec = engine.metrics
        self.fields = extra_fields(engine)
        endpoint, path = metrics_endpoint(engine, url, self.spec.path or "")
        assert endpoint is not None
        self.endpoint = endpoint
        self.target = quote(path, safe=punctuation).encode("ascii")
        self.families: Families = {}
        self.is_there = False

    def is_wanted(self, family: str) -> bool:
        return not family.startswith("pointsman_") and any(fnmatchcase(family, name) for name in self.spec.names)

    async def read(self) -> Families:
        """Raises: GatewayError."""
        timeout, limit = self.spec.timeout, self.spec.max_bytes
        reply = await fetch(
            self.endpoint, "GET", self.target, b"", fields=self.fields, timeout=timeout, max_bytes=limit
        )
        if not reply.is_good:
            raise GatewayError(ErrorKind.UPSTREAM_PROTOCOL, f"the status of its metrics is {reply.status}")
        return read_families(reply.body.decode("utf-8", "replace"), self.is_wanted)

    def counts(self) -> Families:
        """What stays true while the server does not answer."""
        return {
            name: MetricFamily(family.help, family.kind, values)
            for name, family in self.families.items()
            if (values := {series: value for series, value in family.values.items() if family.is_cumulative(series)})
        }


class EngineMetrics:
    """Sums the metrics of all servers whose engines declare `metrics.path`.

    A sum must not fall when a server restarts or leaves the rules, which Prometheus would take for a restart of all:
    what it had counted is carried on.
    """

    def __init__(self) -> None:
        self._servers: dict[tuple[str, str], _Server] = {}  # by URL and path: engines may share them
        self._carried: dict[str, MetricFamily] = {}
        self._reading: asyncio.Task[None] | None = None

    async def text(self, engines: Mapping[str, EngineSpec]) -> bytes:
        """The metrics of all servers as those of one, in Prometheus' text; empty where no engine declares any."""
        self._use(engines)
        if not self._servers and not self._carried:
            return b""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read_all())
        await asyncio.shield(self._reading)
        reported = [server.families if server.is_there else server.counts() for server in self._servers.values()]
        return write_families(sum_families(reported, self._carried))

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        for server in self._servers.values():
            server.endpoint.retire()

    def _use(self, engines: Mapping[str, EngineSpec]) -> None:
        wanted = {
            (endpoint.url, engine.metrics.path): engine
            for engine in engines.values()
            if engine.metrics.path is not None
            for endpoint in engine.endpoints
            if endpoint.speaks_rest or engine.metrics.path.startswith(":")
        }
        known = {url: server.families for (url, _), server in self._servers.items()}
        for key, server in list(self._servers.items()):
            if key not in wanted or server.spec != wanted[key].metrics:
                del self._servers[key]
                server.endpoint.retire()
        for url in known.keys() - {url for url, _ in wanted}:
            self._carry(known[url], {})
        for key, engine in wanted.items():
            if key not in self._servers:
                try:
                    self._servers[key] = server = _Server(engine, key[0])
                    server.families = known.get(key[0], {})
                except OSError as error:  # a certificate file may be there later
                    _log.warning("the metrics of engine '%s' cannot be read: %s", engine.name, error)

    async def _read_all(self) -> None:
        slots = asyncio.Semaphore(_MAX_CALLS)

        async def read(server: _Server) -> None:
            try:
                async with slots:
                    families = await server.read()
            except GatewayError as error:
                server.is_there = False
                _log.debug("the metrics of %s cannot be read: %s", server.endpoint.url, error.message)
                return
            self._carry(server.families, families)
            server.families, server.is_there = families, True

        await asyncio.gather(*map(read, self._servers.values()))

    def _carry(self, before: Families, after: Families) -> None:
        """Keep the counts that a server no longer reports: all of them where it has restarted."""
        if before is after:
            return
        nothing = MetricFamily("", "")
        counts = [
            (name, family, series, value, after.get(name, nothing).values.get(series))
            for name, family in before.items()
            for series, value in family.values.items()
            if family.is_cumulative(series)
        ]
        has_restarted = any(new is not None and new < value for _, _, _, value, new in counts)
        for name, family, series, value, new in counts:
            if has_restarted or new is None:
                carried = self._carried.setdefault(name, MetricFamily(family.help, family.kind)).values
                carried[series] = carried.get(series, 0.0) + value
        if sum(len(family.values) for family in self._carried.values()) > _MAX_CARRIED:
            _log.warning("counts of servers that are gone are dropped: they are more than %d series", _MAX_CARRIED)
            self._carried.clear()
