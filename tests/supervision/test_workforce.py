"""Workers as a force, in the test's own process."""

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
from gateway.supervision.workforce import StartError, Workforce


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
    """Two workers serve one port, as on Linux (SO_REUSEPORT) and as on a Mac (one inherited socket), count what they
    served, and drain."""
    monkeypatch.setattr(ports, "WORKERS_BIND", workers_bind and ports.WORKERS_BIND)

    async def scene() -> None:
        port = ReservedPort("127.0.0.1", 0, "--http-port")
        force = Workforce(Settings(workers=2, drain_timeout=5.0), any_rules(tmp_path), {}, port)
        try:
            await force.start()
            assert force.num_serving == 2
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port.port}") as client:
                for _ in range(20):
                    answer = await client.get("/v2/health/live", headers={"connection": "close"})
                    assert answer.status_code == 200
            await force.count()
            statuses: Counter[int] = Counter()
            for series in force.tally.series().values():
                statuses.update(series.statuses)
            assert statuses == {200: 20}
            assert await force.drain()
        finally:
            force.kill()
            port.close()

    asyncio.run(scene())


def test_a_worker_that_cannot_start_is_told(tmp_path: Path) -> None:
    """A certificate that cannot be read ends the start with its reason, not with a traceback."""

    async def scene() -> None:
        from gateway.config.settings import ListenerTls

        port = ReservedPort("127.0.0.1", 0, "--http-port")
        settings = Settings(tls=ListenerTls("/nowhere/cert.pem", "/nowhere/key.pem"))
        force = Workforce(settings, any_rules(tmp_path), {}, port)
        with pytest.raises(StartError, match=r"cannot serve: .*No such file"):
            await force.start()
        port.close()

    asyncio.run(scene())


def test_a_reserved_port_is_taken() -> None:
    """A port that is ours is nobody else's: a second gateway does not share it unseen."""
    first = ReservedPort("127.0.0.1", 0, "--http-port")
    with pytest.raises(PortError, match=f"port {first.port} on 127.0.0.1 is in use.*--http-port"):
        ReservedPort("127.0.0.1", first.port, "--http-port")
    first.close()
    ReservedPort("127.0.0.1", first.port, "--http-port").close()
