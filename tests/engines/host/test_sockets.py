"""Sockets are bound before the server listens on them."""

import socket

import pytest

from gateway.net.sockets import bind


@pytest.mark.parametrize("host, family", [("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET)])
def test_a_free_port(host: str, family: int) -> None:
    """A name with both address families is bound by IPv4. Connections are refused until the server listens."""
    with bind(host, 0) as bound:
        port = bound.getsockname()[1]
        assert (bound.family, port > 0) == (family, True)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        bound.listen()
        socket.create_connection(("127.0.0.1", port)).close()


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_an_address_of_ipv6() -> None:
    with bind("::1", 0) as bound:
        assert bound.family == socket.AF_INET6


def test_a_port_that_is_taken() -> None:
    """Binding a port in use fails at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])
