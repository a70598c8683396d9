"""Whose shared memory a request uses."""

import pytest

from gateway.dataplane.context.region_owner import client_address, is_own_address, region_owner
from gateway.protocol.principal import Principal


def test_a_principal_owns_its_regions_wherever_it_is() -> None:
    """Keys of one tenant are clients of their own; texts that look alike are not one owner."""
    alice = Principal("acme", "k1")
    assert region_owner(alice, "127.0.0.1") == region_owner(alice, "203.0.113.1")
    owners = [alice, Principal("acme", "k2"), Principal("acme' 'k1", ""), Principal("", "acme k1"), None]
    assert len({region_owner(each, "127.0.0.1") for each in owners}) == len(owners)


def test_all_addresses_of_this_host_are_one_client() -> None:
    """A client may use any of them; other hosts are others."""
    own = {region_owner(None, address) for address in ("127.0.0.1", "127.1.2.3", "::ffff:127.0.0.1")}
    assert len(own) == 1
    assert len(own | {region_owner(None, "203.0.113.1"), region_owner(None, "198.51.100.2")}) == 3


@pytest.mark.parametrize(
    "address", ["203.0.113.1", "2001:db8::1", "::ffff:203.0.113.1", "", "-", "no address", "localhost"]
)
def test_what_is_no_address_of_this_host(address: str) -> None:
    """Names are none, since anybody may forward them."""
    assert not is_own_address(address)


def test_a_trusted_proxys_word_counts() -> None:
    """The last address is the one that the proxy has seen; a client can write the others."""
    assert client_address("127.0.0.1", b"127.0.0.1, 203.0.113.1", trust_forwarded=True) == "203.0.113.1"
    assert client_address("127.0.0.1", b"203.0.113.1", trust_forwarded=False) == "127.0.0.1"
    assert client_address("127.0.0.1", None, trust_forwarded=True) == "127.0.0.1"
