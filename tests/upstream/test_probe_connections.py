"""Health probes of many endpoints over few connections."""

from __future__ import annotations

import asyncio

from gateway.config.engine_specs import EndpointSpec, EngineSpec, HealthSpec
from gateway.protocol.engine_load import Readiness
from gateway.upstream.health import Findings, Prober
from gateway.upstream.probe_connections import ProbeConnections

NUM_ENDPOINTS = 30
LIMIT = 8


class ManyEndpoints:
    """A server with many ports; it counts its connections."""

    def __init__(self) -> None:
        self.num_open = self.most_open = self.num_connections = self.num_probes = 0
        self.urls: list[str] = []
        self._servers: list[asyncio.Server] = []

    async def start(self) -> None:
        for _ in range(NUM_ENDPOINTS):
            server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
            self._servers.append(server)
            self.urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def stop(self) -> None:
        for server in self._servers:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        self.num_open += 1
        self.most_open = max(self.most_open, self.num_open)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.num_probes += 1
                await asyncio.sleep(0)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
        finally:
            self.num_open -= 1


def test_probes_share_a_bounded_number_of_connections() -> None:
    """All endpoints are probed, again and again, though there are connections for few at a time; half of these are kept
    between probes, and all are closed at the end. What is found comes in few messages."""

    async def scene() -> None:
        endpoints = ManyEndpoints()
        await endpoints.start()
        found: list[Findings] = []
        prober = Prober(found.append, LIMIT)
        health = HealthSpec(interval=0.05, timeout=20)
        urls = tuple(EndpointSpec(url) for url in endpoints.urls)
        prober.use({"e": EngineSpec("e", urls, health=health)})
        await prober.first_round(30)
        expected = {("e", url): Readiness.READY for url in endpoints.urls}
        assert prober.health == expected
        reported = {key: condition for each in found for key, condition in each.conditions.items()}
        assert reported == expected
        assert len(found) < NUM_ENDPOINTS
        async with asyncio.timeout(120):
            while endpoints.num_probes < 10 * NUM_ENDPOINTS:
                await asyncio.sleep(0.01)
        # A server sees a connection end a little after the client has closed it
        assert endpoints.most_open <= 2 * LIMIT
        kept = endpoints.num_probes - endpoints.num_connections
        assert kept > endpoints.num_probes * LIMIT / 2 / NUM_ENDPOINTS / 2
        prober.use({})
        async with asyncio.timeout(120):
            while endpoints.num_open:
                await asyncio.sleep(0.01)
        prober.use({"e": EngineSpec("e", urls[:LIMIT], health=health)})  # the connections are free again
        await prober.first_round(30)
        assert len(prober.health) == LIMIT
        await prober.close()
        endpoints.stop()

    asyncio.run(scene())


class Connected:
    def __init__(self, num_connections: int = 1) -> None:
        self.num_connections = num_connections

    def disconnect(self) -> None:
        self.num_connections = 0


def test_half_of_the_connections_take_turns() -> None:
    """The first endpoints keep their connection, the next wait for a free one; an endpoint without a connection, or
    that is forgotten, frees it."""

    async def scene() -> None:
        connections = ProbeConnections(2)
        first, second, third = Connected(), Connected(), Connected()
        async with connections.of(first):
            pass
        assert first.num_connections == 1
        async with connections.of(second):
            waiting = asyncio.ensure_future(_probe(connections, third))
            await asyncio.sleep(0)
            assert not waiting.done()
            async with connections.of(first):  # has its own
                pass
        assert second.num_connections == 0
        await waiting
        assert third.num_connections == 0
        connections.forget(first)
        async with connections.of(Connected()):
            assert await _probe(connections, third) is None
        assert third.num_connections == 0

    asyncio.run(scene())


async def _probe(connections: ProbeConnections, endpoint: Connected) -> None:
    async with connections.of(endpoint):
        pass
