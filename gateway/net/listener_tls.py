"""TLS of listeners: certificates by the name that a client asks for (SNI), which follow their files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from fnmatch import fnmatchcase
from time import time

from gateway.net.tls_files import TlsFileError, find_problems, follow, read_certificate
from gateway.yaml.problems import Severity

TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS of a listener: PEM files of certificates, with their keys in the same order; `client_ca` requires client
    certificates signed by it. `ciphers` are OpenSSL's names, for TLS 1.2."""

    certs: tuple[str, ...]
    keys: tuple[str, ...]
    client_ca: str | None = None
    min_version: str = "1.2"
    ciphers: str | None = None
    options: str = "--tls"  # how the names of its options begin


def listener_tls(spec: ListenerTls, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> ssl.SSLContext:
    """The TLS of client connections. Connections that are open keep their certificate when it is replaced.

    Raises: TlsFileError.
    """
    for problem in listener_problems(spec):
        if problem[0] is Severity.ERROR:
            raise TlsFileError(problem[1])
    contexts = _ContextsByName(spec, protocols)
    context = _new_context(spec, spec.certs[0], spec.keys[0], protocols)
    context.sni_callback = contexts.choose  # called where a client names no server, too
    follow(context, (*spec.certs, *spec.keys, spec.client_ca), lambda _: contexts.load())
    return context


def listener_problems(spec: ListenerTls) -> list[tuple[Severity, str]]:
    """What is wrong with the files of a listener."""
    names = f"{spec.options}-client-ca", f"{spec.options}-cert", f"{spec.options}-key"
    found = [
        problem
        for cert, key in zip(spec.certs, spec.keys, strict=True)
        for problem in find_problems(None, cert, key, names=names)
    ]
    found += find_problems(spec.client_ca, None, None, names=names)
    if spec.ciphers is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(spec.ciphers)
        except ssl.SSLError:
            found.append((Severity.ERROR, f"--tls-ciphers: OpenSSL knows none of {spec.ciphers!r}"))
    return found


class _ContextsByName:
    """The contexts of a listener's certificates, by the names that they are for."""

    def __init__(self, spec: ListenerTls, protocols: tuple[str, ...]) -> None:
        self._spec = spec
        self._protocols = protocols
        self.load()
        self._reloaded_at = 0.0  # no session is older

    def load(self) -> None:
        """Raises: OSError where a file cannot be used; nothing changes then."""
        spec = self._spec
        contexts = [
            _new_context(spec, cert, key, self._protocols) for cert, key in zip(spec.certs, spec.keys, strict=True)
        ]
        by_name: dict[str, ssl.SSLContext] = {}
        for cert, context in zip(spec.certs, contexts, strict=True):
            for name in read_certificate(cert).names:
                by_name.setdefault(name.lower(), context)
        self._default, self._by_name = contexts[0], by_name
        self._reloaded_at = time()
        self._patterns = [(name, context) for name, context in by_name.items() if name.startswith("*.")]

    def choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int | None:
        """Give a connection the context of the name that its client asks for; the first one where none has it.

        Returns: an alert for a client that resumes a session from before the files have changed: its certificate was
        judged by the former authority.
        """
        if self._spec.client_ca and connection.session_reused:
            session = connection.session
            if session is None or session.time <= self._reloaded_at:
                return int(ssl.AlertDescription.ALERT_DESCRIPTION_HANDSHAKE_FAILURE)
        connection.context = self._find(name.lower()) if name else self._default
        return None

    def _find(self, name: str) -> ssl.SSLContext:
        found = self._by_name.get(name)
        if found is not None:
            return found
        for pattern, context in self._patterns:  # one label, RFC 9525 section 6.3
            if fnmatchcase(name, pattern) and name.count(".") == pattern.count("."):
                return context
        return self._default


def _new_context(spec: ListenerTls, cert: str, key: str, protocols: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = TLS_VERSIONS[spec.min_version]
    if spec.ciphers is not None:
        context.set_ciphers(spec.ciphers)
    context.load_cert_chain(cert, key, password="")
    context.set_alpn_protocols(list(protocols))
    if spec.client_ca:
        context.load_verify_locations(spec.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session shows no certificate, which may be of an authority that was removed since
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context
