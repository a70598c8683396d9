"""Ports that are taken, and what is said of them."""

import pytest

from gateway.supervision.ports import PortError, listen


def test_a_listening_port_is_one_process_alone() -> None:
    """The admin port is nobody else's from the first moment; who wants it too is told which option to change."""
    with listen("127.0.0.1", 0, "--admin-port") as first:
        port = first.getsockname()[1]
        with pytest.raises(PortError, match=rf"^port {port} on 127\.0\.0\.1 is in use.*--admin-port$"):
            listen("127.0.0.1", port, "--admin-port")


def test_an_address_that_is_not_ours_is_told() -> None:
    """An address of another machine is refused by name."""
    with pytest.raises(PortError, match=r"^cannot listen on 192\.0\.2\.1:0: "):
        listen("192.0.2.1", 0, "--admin-port")
