"""macOS's Local Network privacy, told from errors of connects."""

from __future__ import annotations

import pytest

from gateway.protocol.local_network import HINT, local_network_hint

NO_ROUTE = OSError(65, "No route to host")


@pytest.mark.parametrize(
    "host", ["192.168.1.20", "10.0.0.7", "172.16.3.4", "169.254.9.9", "fd00::7", "[fe80::1%en0]", "gpu.local", "gpu"]
)
def test_no_route_to_the_own_network_may_have_a_cause(host: str) -> None:
    """On a Mac errno 65 for a private address, or for a name of the own network, names the setting as one cause of
    two: a machine that is off gives the same errno."""
    assert local_network_hint(NO_ROUTE, host, "darwin") == HINT
    assert "may not be allowed" in HINT
    assert "off or unreachable" in HINT


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "::1", "[::1]", "localhost", "api.localhost", "0.0.0.0", "8.8.8.8", "2606:4700::1", "api.openai.com"],
)
def test_loopback_and_the_internet_need_no_leave(host: str) -> None:
    """The setting has no part in connects within the machine or to public addresses."""
    assert local_network_hint(NO_ROUTE, host, "darwin") == ""


def test_other_systems_and_other_errors_have_no_hint() -> None:
    """Linux's 65 is ENOPKG and its EHOSTUNREACH 113; a refused connect on a Mac is only that."""
    assert local_network_hint(NO_ROUTE, "10.0.0.7", "linux") == ""
    assert local_network_hint(OSError(113, "No route to host"), "10.0.0.7", "linux") == ""
    assert local_network_hint(ConnectionRefusedError(61, "Connection refused"), "10.0.0.7", "darwin") == ""
    assert local_network_hint(ValueError("[Errno 65]"), "10.0.0.7", "darwin") == ""


def test_several_addresses_fail_as_one_error() -> None:
    """asyncio joins the errors of a name's addresses into one without an errno: its text counts."""
    several = OSError("Multiple exceptions: [Errno 65] Connect call failed ('10.0.0.7', 80), [Errno 61] refused")
    assert local_network_hint(several, "gpu.local", "darwin") == HINT


@pytest.mark.parametrize("address, hint", [("10.0.0.7", HINT), ("fe80::1%en0", HINT), ("140.82.112.3", "")])
def test_the_address_in_the_text_counts(address: str, hint: str) -> None:
    """A public name may have a private address, and a name of one label a public one: asyncio's text tells."""
    error = OSError(65, f"Connect call failed ('{address}', 443)")
    assert local_network_hint(error, "gpu.company.com", "darwin") == hint
    assert local_network_hint(error, "gpu", "darwin") == hint
