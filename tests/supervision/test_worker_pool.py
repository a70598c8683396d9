"""The worker pool, in the test's own process."""

import asyncio
from collections import Counter
from pathlib import Path

import httpx
import pytest

from gateway.config.rules import load_rules
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.supervision import ports
from gateway.supervision.ports import PortError, ReservedPort
from gateway.supervision.worker_pool import StartError, WorkerPool
from gateway.worker.process import bind


def any_rules(tmp_path: Path) -> RulesSpec:
    file = tmp_path / "rules.yaml"
    file.write_text(
        "version: 1\nengines: {it: {endpoints: ['http://127.0.0.1:1']}}\nroutes: [{name: all, engine: it}]\n"
    )
    rules = load_rules([file]).rules
    assert rules is not None
    return rules


@pytest.mark.parametrize("workers_bind", [True, False], ids=["each binds the port", "all share one socket"])
def test_workers_share_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_bind: bool) -> None:
    """Two workers serve one port, by SO_REUSEPORT as on Linux and by one inherited socket as on macOS, count their
    requests, and drain."""
    monkeypatch.setattr(ports, "WORKERS_BIND", workers_bind and ports.WORKERS_BIND)

    async def scene() -> None:
        port = ReservedPort("127.0.0.1", 0, "--http-port")
        force = WorkerPool(Settings(workers=2, drain_timeout=5.0), any_rules(tmp_path), [port])
        try:
            await force.start()
            assert force.num_serving == 2
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port.port}", timeout=120) as client:
                for _ in range(20):
                    answer = await client.get("/v2/health/live", headers={"connection": "close"})
                    assert answer.status_code == 200
            await force.count()
            statuses: Counter[int] = Counter()
            for series in force.counters.series().values():
                statuses.update(series.statuses)
            assert statuses == {200: 20}
            assert await force.drain()
            with pytest.raises(httpx.ConnectError):  # no worker is left to answer, so the client does not wait
                await httpx.AsyncClient(timeout=120).get(f"http://127.0.0.1:{port.port}/v2/health/live")
        finally:
            await force.close()
            port.close()

    asyncio.run(scene())


def test_a_worker_that_cannot_start_is_told(tmp_path: Path) -> None:
    """An unreadable certificate ends the start with the reason, without a traceback."""

    async def scene() -> None:
        from gateway.net.listener_tls import ListenerTls

        port = ReservedPort("127.0.0.1", 0, "--http-port")
        settings = Settings(tls=ListenerTls(("/nowhere/cert.pem",), ("/nowhere/key.pem",)))
        force = WorkerPool(settings, any_rules(tmp_path), [port])
        with pytest.raises(StartError, match=r"cannot serve: .*No such file"):
            await force.start()
        await force.close()
        port.close()

    asyncio.run(scene())


def test_a_port_that_is_served_is_not_shared() -> None:
    """A second gateway cannot use a port that workers serve, although they share it: it gets an error that names the
    option."""
    first = ReservedPort("127.0.0.1", 0, "--http-port")
    with bind(Settings(), first.port) as served, bind(Settings(), first.port) as by_another:
        served.listen()
        by_another.listen()
        with pytest.raises(PortError, match=rf"port {first.port} on 127.0.0.1 is in use.*--http-port"):
            ReservedPort("127.0.0.1", first.port, "--http-port")
    first.close()
    ReservedPort("127.0.0.1", first.port, "--http-port").close()
