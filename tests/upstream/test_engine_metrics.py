"""The metrics of engines, read and summed by the control process."""

from __future__ import annotations

import asyncio

from gateway.config.specs import EndpointSpec, EngineSpec, MetricsSpec
from gateway.upstream.engine_metrics import EngineMetrics
from tests.dataplane.stage import Engine, ReceivedRequest, run


class Server:
    """An engine's server, with a count and a gauge."""

    def __init__(self) -> None:
        self.count: dict[str, int] = {"m": 0}
        self.status = 200
        self.padding = 0
        self.is_silent = asyncio.Event()
        self.engine = Engine(self._answer)

    async def _answer(
        self, engine: Engine, received: ReceivedRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.is_silent.is_set():
            await asyncio.Event().wait()
        lines = ["# HELP nv_c Counted", "# TYPE nv_c counter"]
        lines += [f'nv_c{{model="{model}"}} {count}' for model, count in self.count.items()]
        lines += ["# TYPE nv_g gauge", "nv_g 1", "# TYPE vllm:x counter", "vllm:x 1", "# TYPE pointsman_x counter"]
        lines += ["pointsman_x 1", "#" * self.padding, ""]
        body = "\n".join(lines).encode()
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
