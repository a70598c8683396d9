"""A server of DNS on loopback, by UDP and TCP, whose records a test changes."""

from __future__ import annotations

import socketserver
import threading
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer:
    """Serves `records`: by name and type, the texts of their data. A name without any does not exist. While `rcode` is
    set it answers so; names that are `refused` get that; `truncates`: UDP gets no record, as if they were too many."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.additional: dict[str, list[str]] = {}  # A records beside those of SRV
        self.ttl = 1
        self.rcode: dns.rcode.Rcode | None = None
        self.refused: set[str] = set()
        self.truncates = False
        self.queries: list[tuple[str, str, bool]] = []  # name, type, whether by TCP
        self._tcp = _TcpServer(("127.0.0.1", 0), _TcpHandler)
        self.port: int = self._tcp.server_address[1]
        self._udp = _UdpServer(("127.0.0.1", self.port), _UdpHandler)
        for server in (self._tcp, self._udp):
            server.dns = self
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in (self._tcp, self._udp):
            server.shutdown()
            server.server_close()

    def queries_for(self, name: str) -> list[tuple[str, bool]]:
        """The queries for a name: the type, and whether by TCP. A port that another server had gets queries for names
        of other tests."""
        return [(kind, by_tcp) for queried, kind, by_tcp in self.queries if queried == name]

    def reply(self, wire: bytes, *, by_tcp: bool) -> bytes:
        query = dns.message.from_wire(wire)
        response = dns.message.make_response(query)
        (question,) = query.question
        name, kind = question.name.to_text().rstrip("."), dns.rdatatype.to_text(question.rdtype)
        self.queries.append((name, kind, by_tcp))
        known = [data for (known, _), data in self.records.items() if known == name]
        if self.rcode is not None:
            response.set_rcode(self.rcode)
        elif name in self.refused:
            response.set_rcode(dns.rcode.REFUSED)
        elif not known:
            response.set_rcode(dns.rcode.NXDOMAIN)
        elif self.truncates and not by_tcp:
            response.flags |= dns.flags.TC
        elif data := self.records.get((name, kind)):
            response.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", kind, *data))
            for host, addresses in self.additional.items() if kind == "SRV" else ():
                response.additional.append(dns.rrset.from_text(f"{host}.", self.ttl, "IN", "A", *addresses))
        if not response.answer:
            soa = f"ns.{name}. admin.{name}. 1 1 1 1 {self.ttl}"
            response.authority.append(dns.rrset.from_text(question.name, self.ttl, "IN", "SOA", soa))
        return response.to_wire(max_size=65535)


class _TcpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    dns: DnsServer


class _UdpServer(socketserver.ThreadingUDPServer):
    daemon_threads = True
    dns: DnsServer


class _UdpHandler(socketserver.BaseRequestHandler):
    server: _UdpServer

    def handle(self) -> None:
        wire, sock = self.request
        sock.sendto(self.server.dns.reply(wire, by_tcp=False), self.client_address)


class _TcpHandler(socketserver.StreamRequestHandler):
    server: _TcpServer

    def handle(self) -> None:
        while length := self.rfile.read(2):
            reply = self.server.dns.reply(self.rfile.read(int.from_bytes(length, "big")), by_tcp=True)
            self.wfile.write(len(reply).to_bytes(2, "big") + reply)
