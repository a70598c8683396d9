"""Addresses of a name: with dnspython by the records and their TTL; without it by the system's resolver."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gateway.config.source_specs import SourceSpec
from gateway.discovery.addresses import endpoint_at
from gateway.discovery.source_state import FoundEndpoint, SourceError

try:
    import dns.asyncresolver
    import dns.exception
    import dns.nameserver
    import dns.rdatatype
    import dns.resolver
except ImportError:  # the extra `discovery`
    HAS_RECORDS = False
else:
    HAS_RECORDS = True

# Of one resolution, with all its queries.
_SECONDS = 5.0
# Between two resolutions where there is no TTL: Envoy's default.
SECONDS_WITHOUT_TTL = 5.0
# Concurrent queries for the targets of SRV records.
_MAX_QUERIES = 16
_DNS_PORT = 53
# RFC 2782: among records with a weight, those of weight 0 are to have a very small chance.
_LEAST_WEIGHT = 0.01
_HOST_NAME = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-]\.")


@dataclass(frozen=True, slots=True)
class Resolution:
    """The endpoints of a name, and for how long they hold; None: unknown."""

    endpoints: tuple[FoundEndpoint, ...]
    ttl: float | None = None


class DnsClient:
    """Resolves the name of one source."""

    def __init__(self, source: SourceSpec) -> None:
        self._source = source
        self._by_system: asyncio.Task[list[str]] | None = None

    async def resolve(self) -> Resolution:
        """All endpoints of the name; none where there is no such name, or it has no address.

        Raises: SourceError.
        """
        try:
            async with asyncio.timeout(_SECONDS * 2):
                if self._source.is_srv:
                    return await self._resolve_services()
                return await self._resolve_addresses()
        except TimeoutError:
            raise SourceError(f"no answer within {_SECONDS * 2:g} s") from None

    async def _resolve_addresses(self) -> Resolution:
        source = self._source
        assert source.dns is not None
        name, _, port = source.dns.rpartition(":")
        addresses, ttl = await _Records(source).addresses(name) if HAS_RECORDS else ([], None)
        if not addresses and not source.servers:  # /etc/hosts has names, too
            addresses = await self._addresses_by_system(name)
            ttl = None if addresses else ttl
        endpoints = [FoundEndpoint(endpoint_at(source, each, int(port), host=name)) for each in addresses]
        return Resolution(tuple(endpoints), ttl)

    async def _resolve_services(self) -> Resolution:
        source = self._source
        assert source.dns is not None
        records = _Records(source)
        services, ttl = await records.services(source.dns)
        levels = {each: level for level, each in enumerate(sorted({each.priority for each in services}))}
        firsts = {each.target for each in services if not levels[each.priority]}
        weighted = {each.priority for each in services if each.weight}
        slots = asyncio.Semaphore(_MAX_QUERIES)

        async def find(target: str) -> tuple[list[str], float | None]:
            async with slots:
                try:
                    return await records.addresses(target, is_absolute=True)
                except SourceError:
                    if target in firsts:
                        raise
                    return [], None  # a spare must not keep the others from being followed

        targets = list(dict.fromkeys(each.target for each in services))
        found = dict(zip(targets, await asyncio.gather(*map(find, targets)), strict=True))
        endpoints: dict[str, FoundEndpoint] = {}
        for each in sorted(services, key=lambda each: each.priority):
            addresses, target_ttl = found[each.target]
            ttl = _least(ttl, target_ttl)
            is_weighted = each.priority in weighted
            weight = max(float(each.weight), _LEAST_WEIGHT) * source.weight if is_weighted else source.weight
            host, level = each.target.rstrip("."), levels[each.priority]
            for address in addresses:
                endpoint = endpoint_at(source, address, each.port, host=host, weight=weight, level=level)
                endpoints.setdefault(endpoint.url, FoundEndpoint(endpoint))  # an address has its first level
        return Resolution(tuple(endpoints.values()), ttl)

    async def _addresses_by_system(self, name: str) -> list[str]:
        """As the C library resolves it, in a thread; one that hangs is waited for, and no other started.

        Raises: SourceError.
        """
        if self._by_system is None or self._by_system.done():
            self._by_system = asyncio.get_running_loop().create_task(_by_system(name, self._source.family))
        return await asyncio.shield(self._by_system)


async def _by_system(name: str, family: str) -> list[str]:
    families = {"ipv4": socket.AF_INET, "ipv6": socket.AF_INET6}
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            name, None, family=families.get(family, socket.AF_UNSPEC), type=socket.SOCK_STREAM
        )
    except socket.gaierror as error:
        if error.errno in (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)):
            return []
        raise SourceError(f"the system's resolver fails: {error.strerror}") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    return _of_family(addresses, family)


def _of_family(addresses: Iterable[str], family: str) -> list[str]:
    found = list(addresses)
    if family == "auto":
        return [each for each in found if ":" not in each] or found
    return found


def _least(one: float | None, other: float | None) -> float | None:
    return min((each for each in (one, other) if each is not None), default=None)


class _Records:
    """Queries for one resolution: the configuration of the host is read again for each."""

    def __init__(self, source: SourceSpec) -> None:
        """Raises: SourceError where /etc/resolv.conf cannot be read."""
        self._family = source.family
        self._known: dict[str, tuple[list[str], float]] = {}  # of replies with SRV records
        try:
            self._resolver = dns.asyncresolver.Resolver(configure=not source.servers)
        except dns.exception.DNSException as error:
            raise SourceError(f"no servers of DNS are known: {error}") from None
        self._resolver.lifetime = _SECONDS
        if source.servers:
            self._resolver.nameservers = [dns.nameserver.Do53Nameserver(*_address(each)) for each in source.servers]

    async def addresses(self, name: str, *, is_absolute: bool = False) -> tuple[list[str], float | None]:
        """The addresses of a name, and their TTL.

        Raises: SourceError.
        """
        if name in self._known:
            return self._known[name]
        kinds = {"ipv4": ("A",), "ipv6": ("AAAA",), "auto": ("A", "AAAA"), "all": ("A", "AAAA")}[self._family]
        found: list[str] = []
        least: float | None = None
        for kind in kinds:
            answer = await self._query(name, kind, is_absolute=is_absolute)
            if answer is None:
                continue
            least = _least(least, answer.chaining_result.minimum_ttl)
            found += [each.address for each in answer.rrset or ()]
            if found and self._family == "auto":
                break
        return found, least

    async def services(self, name: str) -> tuple[list[_Service], float | None]:
        """The SRV records, and their TTL; those for `.` say that there is no such service. Names that no host can have
        would not fit into a `Host` field.

        Raises: SourceError.
        """
        answer = await self._query(name, "SRV", is_absolute=False)
        if answer is None:
            return [], None
        services = [
            _Service(each.target.to_text(), each.port, each.weight, each.priority)
            for each in answer.rrset or ()
            if each.port and _HOST_NAME.fullmatch(each.target.to_text())
        ]
        if self._family in ("auto", "ipv4"):
            for rrset in answer.response.additional:
                if rrset.rdtype == dns.rdatatype.A:
                    self._known[rrset.name.to_text()] = [each.address for each in rrset], float(rrset.ttl)
        return services, float(answer.chaining_result.minimum_ttl)

    async def _query(self, name: str, kind: str, *, is_absolute: bool) -> Any:
        """The answer; None where there is no such name. A truncated reply is read again by TCP.

        Raises: SourceError.
        """
        try:
            return await self._resolver.resolve(name, kind, raise_on_no_answer=False, search=not is_absolute)
        except dns.resolver.NXDOMAIN:
            return None
        except dns.exception.Timeout:
            raise SourceError(f"no answer to {kind} of {name} within {_SECONDS:g} s") from None
        except (dns.exception.DNSException, OSError) as error:
            raise SourceError(f"no answer to {kind} of {name}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Service:
    """An SRV record."""

    target: str
    port: int
    weight: int
    priority: int


def _address(text: str) -> tuple[str, int]:
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address, int(port[1:] or _DNS_PORT)
    if text.count(":") == 1:
        address, _, port = text.partition(":")
        return address, int(port)
    return text, _DNS_PORT
