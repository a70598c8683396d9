"""Names of DNS: records with their TTL from a real server, and the system's resolver without it."""

import asyncio
import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gateway.config.source_specs import SourceSpec
from gateway.discovery import dns_client
from gateway.discovery.dns_client import DnsClient, Resolution
from gateway.discovery.source_state import SourceError

dns = pytest.importorskip("dns")

from tests.support.dns_server import DnsServer  # noqa: E402


@pytest.fixture(scope="module")
def shared() -> Iterator[DnsServer]:
    with DnsServer() as server:
        yield server


@pytest.fixture
def server(shared: DnsServer) -> DnsServer:
    shared.records, shared.additional, shared.queries = {}, {}, []
    shared.rcode, shared.refused, shared.truncates, shared.ttl = None, set(), False, 7
    return shared


def resolve(server: DnsServer, name: str, **keys: Any) -> Resolution:
    return asyncio.run(DnsClient(SourceSpec(dns=name, servers=(server.address,), **keys)).resolve())


def urls(resolution: Resolution) -> list[str]:
    return sorted(each.spec.url for each in resolution.endpoints)


def test_every_address_is_an_endpoint(server: DnsServer) -> None:
    """A name's A records are endpoints that carry the name, for as long as the TTL says."""
    server.records = {("triton.test", "A"): ["10.0.0.1", "10.0.0.2"], ("triton.test", "AAAA"): ["fd00::1"]}
    resolution = resolve(server, "triton.test:8000", grpc="8001", zone="z1")
    assert urls(resolution) == ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]
    spec = min((each.spec for each in resolution.endpoints), key=lambda spec: spec.url)
    assert (spec.grpc, spec.zone, spec.host, resolution.ttl) == ("10.0.0.1:8001", "z1", "triton.test", 7.0)
    assert urls(resolve(server, "triton.test:8000", family="ipv6")) == ["http://[fd00::1]:8000"]
    assert len(urls(resolve(server, "triton.test:8000", family="all"))) == 3
    assert urls(resolve(server, "triton.test:443", scheme="grpcs"))[0] == "grpcs://10.0.0.1:443"


def test_ipv6_where_there_is_no_ipv4(server: DnsServer) -> None:
    """A name without A records has its AAAA records."""
    server.records = {("triton.test", "AAAA"): ["fd00::1"]}
    assert urls(resolve(server, "triton.test:8000")) == ["http://[fd00::1]:8000"]


def test_a_name_that_does_not_exist_is_empty(server: DnsServer) -> None:
    """NXDOMAIN and a name without addresses have no endpoint; both are answers."""
    server.records = {("texts.test", "TXT"): ["hello"]}
    assert urls(resolve(server, "texts.test:8000")) == urls(resolve(server, "none.test:8000")) == []


def test_failures(server: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that fails, refuses or is silent gives no answer, and an error that says what was asked."""
    server.rcode = dns.rcode.SERVFAIL
    with pytest.raises(SourceError, match=r"no answer to A of triton\.test"):
        resolve(server, "triton.test:8000")
    monkeypatch.setattr(dns_client, "_SECONDS", 0.3)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        source = SourceSpec(dns="triton.test:8000", servers=(f"127.0.0.1:{silent.getsockname()[1]}",))
        with pytest.raises(SourceError, match=r"no answer (to A of triton\.test )?within 0\.[36] s"):
            asyncio.run(DnsClient(source).resolve())


def test_a_truncated_reply_is_read_by_tcp(server: DnsServer) -> None:
    """What does not fit into a datagram comes by TCP: hundreds of addresses."""
    server.records = {("large.test", "A"): [f"10.0.{at // 250}.{at % 250 + 1}" for at in range(600)]}
    server.truncates = True
    assert len(urls(resolve(server, "large.test:8000"))) == 600
    assert [by_tcp for _, by_tcp in server.queries_for("large.test")] == [False, True]


def test_services(server: DnsServer) -> None:
    """SRV records give ports, weights and levels, by the order of their priorities; a target has all its addresses, and
    an address the first of its levels."""
    server.records = {
        ("_http._tcp.triton.test", "SRV"): ["10 1 8000 a.test.", "10 3 8100 b.test.", "90 0 8000 later.test."],
        ("a.test", "A"): ["10.0.0.1"],
        ("b.test", "A"): ["10.0.0.2", "10.0.0.3"],
        ("later.test", "A"): ["10.0.0.4", "10.0.0.1"],
    }
    resolution = resolve(server, "_http._tcp.triton.test", scheme="https", priority=2)
    found = [each.spec for each in resolution.endpoints]
    assert sorted((each.url, each.weight, each.host, each.priority) for each in found) == [
        ("https://10.0.0.1:8000", 1.0, "a.test", 2),
        ("https://10.0.0.2:8100", 3.0, "b.test", 2),
        ("https://10.0.0.3:8100", 3.0, "b.test", 2),
        ("https://10.0.0.4:8000", 1.0, "later.test", 3),
    ]


def test_a_spare_service_that_cannot_be_resolved(server: DnsServer) -> None:
    """A target of a later level whose name fails is left out; one of the first level fails the resolution."""
    server.records = {
        ("_http._tcp.triton.test", "SRV"): ["0 1 8000 a.test.", "1 1 8000 broken.test."],
        ("a.test", "A"): ["10.0.0.1"],
    }
    server.refused = {"broken.test"}
    assert [each.spec.url for each in resolve(server, "_http._tcp.triton.test").endpoints] == ["http://10.0.0.1:8000"]
    server.refused = {"a.test"}
    with pytest.raises(SourceError, match=r"no answer to A of a\.test"):
        resolve(server, "_http._tcp.triton.test")


def test_addresses_beside_services_are_not_queried(server: DnsServer) -> None:
    """Targets whose addresses come with the SRV records need no query; `.` says that there is no service."""
    server.records = {("_http._tcp.triton.test", "SRV"): ["0 0 8000 a.test."], ("_no._tcp.x.test", "SRV"): ["0 0 0 ."]}
    server.additional = {"a.test": ["10.0.0.1"]}
    resolution = resolve(server, "_http._tcp.triton.test")
    assert [(each.spec.url, each.spec.weight) for each in resolution.endpoints] == [("http://10.0.0.1:8000", 1.0)]
    assert server.queries_for("_http._tcp.triton.test") and not server.queries_for("a.test")
    assert urls(resolve(server, "_no._tcp.x.test")) == []


def test_services_that_no_host_can_have_are_left_out(server: DnsServer) -> None:
    """A port 0, which a URL would take for the scheme's, and targets that do not fit into a `Host` field."""
    server.records = {
        ("_http._tcp.triton.test", "SRV"): [
            "0 1 0 a.test.",
            "0 1 80 a\\032b.test.",
            "0 1 80 \\.a.",
            "0 1 8000 a.test.",
        ],
        ("a.test", "A"): ["10.0.0.1"],
    }
    assert urls(resolve(server, "_http._tcp.triton.test")) == ["http://10.0.0.1:8000"]


def test_the_systems_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dnspython the C library resolves names, as with /etc/hosts; no such name is empty, all else an error."""
    monkeypatch.setattr(dns_client, "HAS_RECORDS", False)
    known: dict[str, list[str] | int] = {
        "two.test": ["10.0.0.1", "fd00::1", "10.0.0.1"],
        "none.test": socket.EAI_NONAME,
        "later.test": socket.EAI_AGAIN,
    }

    def getaddrinfo(host: str, *_: Any, **__: Any) -> list[Any]:
        found = known[host]
        if isinstance(found, int):
            raise socket.gaierror(found, "it is so")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    source = SourceSpec(dns="two.test:8000")
    resolution = asyncio.run(DnsClient(source).resolve())
    assert (urls(resolution), resolution.ttl) == (["http://10.0.0.1:8000"], None)
    both = asyncio.run(DnsClient(replace(source, family="all")).resolve())
    assert urls(both) == ["http://10.0.0.1:8000", "http://[fd00::1]:8000"]
    assert urls(asyncio.run(DnsClient(replace(source, dns="none.test:1")).resolve())) == []
    with pytest.raises(SourceError, match="the system's resolver fails: it is so"):
        asyncio.run(DnsClient(replace(source, dns="later.test:1")).resolve())
