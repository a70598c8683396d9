"""Ports in use, and the errors for them."""

import socket
from collections.abc import Callable

import pytest

from engines.fleet.ports import can_bind
from gateway.net import sockets
from gateway.net import sockets as net_ports
from gateway.supervision import ports
from gateway.supervision.ports import PortError, ReservedPort, listen


def test_a_listening_port_is_one_process_alone() -> None:
    """The admin port is exclusive from the start; a second listener gets an error that names the option to change."""
    with listen("127.0.0.1", 0, "--admin-port") as first:
        port = first.getsockname()[1]
        with pytest.raises(PortError, match=rf"^port {port} on 127\.0\.0\.1 is in use.*--admin-port$"):
            listen("127.0.0.1", port, "--admin-port")


def test_an_address_that_is_not_ours_is_told() -> None:
    """An address of another machine is refused with an error that names it."""
    with pytest.raises(PortError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        listen("192.0.2.1", 0, "--admin-port")


class LenientSocket(socket.socket):
    """A socket that binds beside others with SO_REUSEADDR, as BSD systems allow for different addresses."""

    def bind(self, address: tuple[str, int]) -> None:
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().bind(address)


TAKERS: list[Callable[[str, int], object]] = [
    lambda host, port: listen(host, port, "--admin-port"),
    lambda host, port: ReservedPort(host, port, "--http-port"),
    sockets.bind,
]


@pytest.mark.parametrize("take", TAKERS, ids=["listen", "ReservedPort", "an engine host"])
@pytest.mark.parametrize(("theirs", "ours"), [("0.0.0.0", "127.0.0.1"), ("127.0.0.1", "0.0.0.0")])
def test_a_port_that_another_address_listens_on_is_in_use(
    monkeypatch: pytest.MonkeyPatch, take: Callable[[str, int], object], theirs: str, ours: str
) -> None:
    """A port in use is detected even where bind(2) succeeds, as on macOS, by connecting to it first."""
    monkeypatch.setattr(socket, "socket", LenientSocket)
    monkeypatch.setattr(net_ports, "BIND_REFUSES_ALL", False)
    with LenientSocket(socket.AF_INET, socket.SOCK_STREAM) as other:
        other.bind((theirs, 0))
        other.listen()
        port = other.getsockname()[1]
        assert not can_bind(ours, port)
        with pytest.raises((PortError, OSError), match="in use"):
            take(ours, port)
    assert can_bind(ours, port)


def test_workers_may_share_one_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SO_REUSEPORT does not spread connections, the reserved port is a listening socket that workers inherit."""
    monkeypatch.setattr(ports, "WORKERS_BIND", False)
    reserved = ReservedPort("127.0.0.1", 0, "--http-port")
    assert reserved.listener is not None
    with socket.create_connection(("127.0.0.1", reserved.port)):
        connection, _ = reserved.listener.accept()
    connection.close()
    reserved.close()
