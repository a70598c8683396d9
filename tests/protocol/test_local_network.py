"""Hints on macOS's Local Network privacy setting for failed connects."""

from __future__ import annotations

import pytest

from gateway.protocol.local_network import HINT, local_network_hint

NO_ROUTE = OSError(65, "No route to host")


@pytest.mark.parametrize(
    "host", ["192.168.1.20", "10.0.0.7", "172.16.3.4", "169.254.9.9", "fd00::7", "[fe80::1%en0]", "gpu.local", "gpu"]
)
def test_no_route_to_the_own_network_may_have_a_cause(host: str) -> None:
    """On macOS, errno 65 for a private address or a local name yields a hint with both possible causes: the setting,
    or a machine that is off."""
    assert local_network_hint(NO_ROUTE, host, "darwin") == HINT
    assert "may not be allowed" in HINT
    assert "off or unreachable" in HINT


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "::1", "[::1]", "localhost", "api.localhost", "0.0.0.0", "8.8.8.8", "2606:4700::1", "api.openai.com"],
)
def test_loopback_and_the_internet_need_no_leave(host: str) -> None:
    """Loopback and public addresses yield no hint."""
    assert local_network_hint(NO_ROUTE, host, "darwin") == ""


def test_other_systems_and_other_errors_have_no_hint() -> None:
    """Other systems and other errors yield no hint; on Linux, errno 65 is ENOPKG and EHOSTUNREACH is 113."""
    assert local_network_hint(NO_ROUTE, "10.0.0.7", "linux") == ""
    assert local_network_hint(OSError(113, "No route to host"), "10.0.0.7", "linux") == ""
    assert local_network_hint(ConnectionRefusedError(61, "Connection refused"), "10.0.0.7", "darwin") == ""
    assert local_network_hint(ValueError("[Errno 65]"), "10.0.0.7", "darwin") == ""


def test_several_addresses_fail_as_one_error() -> None:
    """The errno is read from the text of asyncio's joint error for several addresses, which has no errno of its own."""
    several = OSError("Multiple exceptions: [Errno 65] Connect call failed ('10.0.0.7', 80), [Errno 61] refused")
    assert local_network_hint(several, "gpu.local", "darwin") == HINT


@pytest.mark.parametrize("address, hint", [("10.0.0.7", HINT), ("fe80::1%en0", HINT), ("140.82.112.3", "")])
def test_the_address_in_the_text_counts(address: str, hint: str) -> None:
    """The address in the error's text decides, since a public name may resolve to a private address and vice versa."""
    error = OSError(65, f"Connect call failed ('{address}', 443)")
    assert local_network_hint(error, "gpu.company.com", "darwin") == hint
    assert local_network_hint(error, "gpu", "darwin") == hint
