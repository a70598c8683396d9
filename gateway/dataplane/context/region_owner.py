"""Whose shared memory a request uses."""

from __future__ import annotations

import socket
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from gateway.protocol.principal import Principal

# All clients of this host that authentication does not tell apart: they use any of its addresses.
_THIS_HOST = "this host"


def region_owner(principal: Principal | None, peer: str) -> str:
    """The verified caller, or else its host."""
    if principal is not None:
        return f"principal {principal.tenant!r} {principal.key!r}"
    return _host(peer)


@lru_cache(1024)
def _host(peer: str) -> str:
    return _THIS_HOST if is_own_address(peer) else f"host {peer}"


def client_address(peer: str, forwarded_for: bytes | None, *, trust_forwarded: bool) -> str:
    """A client's address: the one that a trusted proxy has seen, where there is one."""
    if not trust_forwarded or forwarded_for is None:
        return peer
    return forwarded_for.rpartition(b",")[2].strip().decode("latin-1")


def is_own_address(host: str) -> bool:
    """Whether an address is this machine's own."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_loopback:
        return True
    try:  # only an own address can be bound
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
