"""The metrics of engines, read and summed by the control process."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gateway.config.engine_specs import EndpointSpec, EngineSpec, MetricsSpec
from gateway.upstream import engine_metrics
from gateway.upstream.engine_metrics import EngineMetrics
from tests.dataplane.stage import Engine, ReceivedRequest, run, until


class Server:
    """An engine's server, with a count and a gauge."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {"m": 0}
        self.status = 200
        self.padding = 0
        self.is_empty = False
        self.is_silent = asyncio.Event()
        self.engine = Engine(self._answer)

    async def _answer(
        self, engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.is_silent.is_set():
            await reader.read()
            return
        lines = ["# HELP nv_c Counted", "# TYPE nv_c counter"]
        lines += [f'nv_c{{model="{model}"}} {count}' for model, count in self.count.items()]
        lines += ["# TYPE nv_g gauge", "nv_g 1", "# TYPE vllm:x counter", "vllm:x 1", "# TYPE pointsman_x counter"]
        lines += ["pointsman_x 1", "#" * self.padding, ""]
        body = b"" if self.is_empty else "\n".join(lines).encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (self.status, len(body)) + body)


def engine(*servers: Server, name: str = "a", **spec: object) -> EngineSpec:
    """An engine whose metrics are at its own port."""
    port = servers[0].engine.url.rpartition(":")[2]
    path = "/metrics" if len(servers) > 1 else f":{port}/metrics"
    metrics = MetricsSpec(**{"path": path, **spec})  # type: ignore[arg-type]
    return EngineSpec(name, tuple(EndpointSpec(each.engine.url) for each in servers), metrics=metrics)


def value(text: bytes, series: str) -> float | None:
    return next((float(line.split()[-1]) for line in text.decode().splitlines() if line.startswith(series + " ")), None)


def test_sums_never_fall() -> None:
    """A count stays when a server restarts, does not answer, unloads a model or leaves the rules; a gauge is that of
    the servers which answer."""

    async def scene() -> None:
        one, two = Server(), Server()
        for server in (one, two):
            await server.engine.start()
        metrics, engines = EngineMetrics(), {"a": engine(one, two)}
        m, n = 'nv_c{model="m"}', 'nv_c{model="n"}'
        one.count, two.count = {"m": 10, "n": 5}, {"m": 1}
        text = await metrics.text(engines)
        assert (value(text, m), value(text, n), value(text, "nv_g")) == (11, 5, 2)
        assert b"vllm" not in text and b"pointsman" not in text
        one.count = {"m": 2, "n": 6}  # restarted: n has counted more since
        text = await metrics.text(engines)
        assert (value(text, m), value(text, n)) == (13, 11)
        two.status = 503
        text = await metrics.text(engines)
        assert (value(text, m), value(text, "nv_g")) == (13, 1)
        two.status, two.count, one.count = 200, {"m": 4}, {"m": 2}  # n is unloaded
        text = await metrics.text(engines)
        assert (value(text, m), value(text, n), value(text, "nv_g")) == (16, 11, 2)
        text = await metrics.text({"a": engine(one)})
        assert (value(text, m), value(text, n), value(text, "nv_g")) == (16, 11, 1)
        assert value(await metrics.text({}), m) == 16
        await metrics.close()
        for server in (one, two):
            server.engine.stop()

    run(scene())


def test_bounds() -> None:
    """A server that is late, or whose text is too long, keeps nobody waiting and changes nothing."""

    async def scene() -> None:
        one, two = Server(), Server()
        for server in (one, two):
            await server.engine.start()
        metrics = EngineMetrics()
        engines = {"a": engine(one, two, timeout=0.3, max_bytes=1000)}
        m = 'nv_c{model="m"}'
        one.count, two.count = {"m": 1}, {"m": 2}
        assert value(await metrics.text(engines), m) == 3
        one.padding, one.count = 1000, {"m": 100}
        text = await metrics.text(engines)
        assert (value(text, m), value(text, "nv_g")) == (3, 1)
        one.is_silent.set()
        text = await metrics.text(engines)
        assert (value(text, m), value(text, "nv_g")) == (3, 1)
        await metrics.close()
        for server in (one, two):
            server.engine.stop()

    run(scene())


def test_servers_are_read_once() -> None:
    """Engines that share a server count it once, and scrapes at the same time share a reading; engines that declare no
    metrics are not read."""

    async def scene() -> None:
        server = Server()
        await server.engine.start()
        server.count = {"m": 7}
        metrics = EngineMetrics()
        engines = {"a": engine(server), "b": engine(server, name="b", names=("nv_*",))}
        texts = await asyncio.gather(*[metrics.text(engines) for _ in range(5)])
        assert {value(text, 'nv_c{model="m"}') for text in texts} == {7}
        assert len(server.engine.received) == 1
        assert await EngineMetrics().text({"a": engine(server, path=None)}) == b""
        text = await metrics.text({"a": engine(server, names=("vllm:*",))})
        assert (value(text, "vllm:x"), value(text, "nv_g")) == (1, None)
        await metrics.close()
        server.engine.stop()

    run(scene())


def test_counts_that_come_back() -> None:
    """An empty page, and series that a server does not show for a while, count once; a server that leaves the rules
    comes back with its counts."""

    async def scene() -> None:
        server = Server()
        await server.engine.start()
        metrics, engines = EngineMetrics(), {"a": engine(server)}
        m, n = 'nv_c{model="m"}', 'nv_c{model="n"}'

        async def values() -> tuple[float | None, ...]:
            text = await metrics.text(engines)
            return value(text, m), value(text, n), value(text, "nv_g")

        server.count = {"m": 100, "n": 10}
        assert await values() == (100, 10, 1)
        server.is_empty = True
        assert await values() == (100, 10, None)
        server.is_empty = False
        assert await values() == (100, 10, 1)
        server.count = {"m": 100}
        assert await values() == (100, 10, 1)
        server.count = {"m": 100, "n": 11}
        assert await values() == (100, 11, 1)
        server.count = {"m": 101}
        assert await values() == (101, 11, 1)
        server.count = {"m": 101, "n": 2}  # the model has been loaded again
        assert await values() == (101, 13, 1)
        assert value(await metrics.text({}), n) == 13
        assert await values() == (101, 13, 1)
        await metrics.close()
        server.engine.stop()

    run(scene())


def test_changed_engines() -> None:
    """Another API key, and other headers, are sent from the next scrape on; engines that share a server show the
    metrics that any of them names."""

    async def scene() -> None:
        server = Server()
        await server.engine.start()
        server.count = {"m": 7}
        metrics, m = EngineMetrics(), 'nv_c{model="m"}'
        before, after = replace(engine(server), api_key="old"), replace(engine(server), api_key="new")
        texts = [await metrics.text({"a": each}) for each in (before, after, replace(after, headers={"x-k": "v"}))]
        assert [value(text, m) for text in texts] == [7, 7, 7]
        sent = [(each.value("authorization"), each.value("x-k")) for each in server.engine.received]
        assert sent == [("Bearer old", None), ("Bearer new", None), ("Bearer new", "v")]
        text = await metrics.text({"a": after, "b": engine(server, name="b", names=("vllm:*",))})
        assert (value(text, m), value(text, "vllm:x")) == (7, 1)
        assert len(server.engine.received) == 4
        text = await metrics.text({"a": after})
        assert (value(text, m), value(text, "vllm:x")) == (7, None)
        await metrics.close()
        server.engine.stop()

    run(scene())


def test_silent_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that do not answer share one time limit, and keep others out of one scrape, not of the next; a scrape
    leaves no connection open."""

    async def scene() -> None:
        monkeypatch.setattr(engine_metrics, "_MAX_CALLS", 2)
        silent, server = Server(), Server()
        for each in (silent, server):
            await each.engine.start()
        silent.is_silent.set()
        metrics = EngineMetrics()
        port = silent.engine.url.rpartition(":")[2]
        engines = {str(path): engine(silent, path=f":{port}/{path}", timeout=0.3) for path in range(10)}
        engines["last"] = engine(server, timeout=0.3)
        num_scrapes = 1
        while value(await metrics.text(engines), "nv_g") is None:
            assert len(silent.engine.received) <= 2 * num_scrapes
            num_scrapes += 1
        await until(lambda: not server.engine.num_open and not silent.engine.num_open)
        await metrics.close()
        for each in (silent, server):
            each.engine.stop()

    run(scene())
