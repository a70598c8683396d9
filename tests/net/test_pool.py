"""macOS denies the gateway access to the local network: the error and the log line name the setting."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from gateway.config.engine_specs import ConnectionSpec, EndpointSpec, EngineSpec, HealthSpec
from gateway.net.http1_client import Http1Pool
from gateway.protocol.engine_load import Readiness
from gateway.protocol.local_network import HINT
from gateway.upstream.health import Prober
from tests.net.stage import Caller


@pytest.fixture
def _refusing_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connect fails as Local Network privacy makes it fail, on a simulated Mac."""

    async def create_connection(*_: object, **__: object) -> None:
        raise OSError(65, "No route to host")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "create_connection", create_connection)
    monkeypatch.setattr(sys, "platform", "darwin")


@pytest.mark.usefixtures("_refusing_mac")
@pytest.mark.parametrize("host, hinted", [("192.168.1.20", True), ("gpu.local", True), ("127.0.0.1", False)])
def test_a_failed_request_names_the_setting(host: str, hinted: bool) -> None:
    """The error names the setting to change, unless the endpoint is on this machine."""

    async def scene() -> None:
        caller = Caller().ask(Http1Pool(host, 8000, ConnectionSpec()))
        await caller.over()
        assert caller.error is not None
        assert f"cannot connect to {host}:8000: [Errno 65] No route to host" in caller.error.message
        assert (HINT in caller.error.message) is hinted

    asyncio.SelectorEventLoop().run_until_complete(scene())


@pytest.mark.usefixtures("_refusing_mac")
@pytest.mark.parametrize("url", ["http://192.168.1.20:8000", "grpc://192.168.1.20:8001"])
def test_a_failed_probe_names_the_setting(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """The log line of an endpoint that is down names the reason and the setting to change."""

    async def scene() -> None:
        prober = Prober(lambda found: None)
        prober.use({"triton": EngineSpec("triton", (EndpointSpec(url),), health=HealthSpec(timeout=5))})
        await prober.first_round(30)
        assert prober.health == {("triton", url): Readiness.DOWN}
        await prober.close()

    with caplog.at_level(logging.WARNING, "gateway.upstream.health"):
        asyncio.SelectorEventLoop().run_until_complete(scene())
    assert f"{url} of engine 'triton' is down: cannot connect to 192.168.1.20:" in caplog.text
    assert HINT in caplog.text
