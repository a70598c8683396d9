"""A connect to an engine of the rules."""

from __future__ import annotations

import socket
import sys

import pytest

from engines.doctor.endpoint import connect
from engines.doctor.finding import FindingStatus
from gateway.protocol.local_network import HINT
from tests.support.ports import free_port


def test_an_engine_that_listens() -> None:
    """The address and the time it took."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = connect(f"grpc://localhost:{server.getsockname()[1]}")
    assert found.status is FindingStatus.OK
    assert "connects to 127.0.0.1" in found.found


def test_nobody_listens() -> None:
    """The failure says what to start."""
    found = connect(f"http://127.0.0.1:{free_port()}")
    assert found.status is FindingStatus.FAIL
    assert "nothing listens there" in found.cure


def test_a_name_that_is_not_known() -> None:
    """Neither does a name that nobody knows raise."""
    assert connect("http://no..name:80").status is FindingStatus.FAIL


@pytest.mark.parametrize("host, cure", [("192.168.1.20", HINT), ("8.8.8.8", "check the address in the rules")])
def test_local_network_privacy(host: str, cure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errno 65 on a Mac names the setting, for addresses of the own network."""

    def refuse(address: tuple[str, int], timeout: float) -> None:
        raise OSError(65, "No route to host")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(sys, "platform", "darwin")
    found = connect(f"http://{host}:8000")
    assert found.status is FindingStatus.FAIL
    assert found.cure.startswith(cure)
    assert found.figures["errno"] == 65


def test_a_silent_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connect that nobody answers ends with the time it was given."""

    def wait(address: tuple[str, int], timeout: float) -> None:
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", wait)
    assert "within 5 s" in connect("https://192.0.2.1").found
