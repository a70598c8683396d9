"""TLS of listeners: certificates by the name that a client asks for (SNI), which follow their files."""

from __future__ import annotations

import logging
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from time import time

from gateway.net.client_certificate import retire
from gateway.net.regular_file import read_regular
from gateway.net.tls_files import TlsFileError, as_files, find_problems, follow, read_certificate
from gateway.yaml.problems import Severity

_log = logging.getLogger(__name__)

# Whether clients show certificates: they may, and those shown are verified; or they must.
CLIENT_AUTH = {"optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class ListenerTls:
    """TLS of a listener: PEM files of certificates, with their keys in the same order; `client_ca` has signed the
    certificates of clients, which show one as `client_auth` says. `ciphers` are OpenSSL's names, for TLS 1.2."""

    certs: tuple[str, ...]
    keys: tuple[str, ...]
    client_ca: str | None = None
    min_version: str = "1.2"
    ciphers: str | None = None
    client_auth: str = "required"
    options: str = "--tls"  # how the names of its options begin

    @property
    def requires_certificates(self) -> bool:
        """Whether clients without a certificate are refused."""
        return self.client_ca is not None and self.client_auth == "required"


def listener_tls(spec: ListenerTls, protocols: tuple[str, ...] = ("h2", "http/1.1")) -> ssl.SSLContext:
    """The TLS of client connections. Connections that are open keep their certificate when it is replaced.

    Raises: TlsFileError.
    """
    for problem in listener_problems(spec):
        if problem[0] is Severity.ERROR:
            raise TlsFileError(problem[1])
    if not isinstance(sys.unraisablehook, _NonAsciiName):
        sys.unraisablehook = _NonAsciiName(sys.unraisablehook)
    contexts = _ContextsByName(spec, protocols)
    context = contexts.new()
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


class _NonAsciiName:
    """Python reports a server name that is not ASCII, whose connection it refuses, as an error that nobody can catch:
    the log has a line in place of a traceback."""

    def __init__(self, before: Callable[[sys.UnraisableHookArgs], object]) -> None:
        self._before = before

    def __call__(self, unraisable: sys.UnraisableHookArgs, /) -> None:
        if isinstance(unraisable.exc_value, UnicodeDecodeError) and isinstance(unraisable.object, bytes):
            _log.warning("a TLS connection is refused: its server name (SNI) is not ASCII")
        else:
            self._before(unraisable)


@dataclass(frozen=True, slots=True)
class _Pair:
    """A certificate and its key, as their files had them."""

    cert: bytes
    key: bytes
    names: tuple[str, ...]

    @classmethod
    def read(cls, cert: str, key: str) -> _Pair:
        """Raises: OSError where the files cannot be read, or do not fit (ssl.SSLError)."""
        contents = read_regular(cert), read_regular(key)
        with as_files(*contents) as (cert_copy, key_copy):
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_copy, key_copy, password="")
            return cls(*contents, read_certificate(cert_copy).names)


class _ContextsByName:
    """The contexts of a listener's certificates, by the names that they are for."""

    def __init__(self, spec: ListenerTls, protocols: tuple[str, ...]) -> None:
        """Raises: OSError."""
        self._spec = spec
        self._protocols = protocols
        self._pairs = [_Pair.read(cert, key) for cert, key in zip(spec.certs, spec.keys, strict=True)]
        self._authority = _authority(spec.client_ca)
        self._use()
        self._reloaded_at = 0.0  # no session is older

    def new(self) -> ssl.SSLContext:
        """A context as that of the first certificate."""
        return _new_context(self._spec, self._pairs[0], self._authority, self._protocols)

    def load(self) -> None:
        """Read the files again. What cannot be used stays as it was read before, the rest is in use.

        Raises: OSError, which names the files that cannot be used.
        """
        spec, before = self._spec, list(self._contexts)
        damaged: list[str] = []
        for at, (cert, key) in enumerate(zip(spec.certs, spec.keys, strict=True)):
            try:
                self._pairs[at] = _Pair.read(cert, key)
            except OSError as error:
                damaged.append(f"{cert}, {key}: {error}")
        try:
            authority = _authority(spec.client_ca)
        except OSError as error:
            authority = self._authority
            damaged.append(f"{spec.client_ca}: {error}")
        is_replaced, self._authority = authority != self._authority, authority
        self._use()
        self._reloaded_at = time()
        if is_replaced:
            retire(before)
        if damaged:
            raise OSError("; ".join(damaged))

    def _use(self) -> None:
        self._contexts = [_new_context(self._spec, pair, self._authority, self._protocols) for pair in self._pairs]
        by_name: dict[str, ssl.SSLContext] = {}
        for pair, context in zip(self._pairs, self._contexts, strict=True):
            for name in pair.names:
                by_name.setdefault(name.lower(), context)
        self._by_name = by_name
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
        connection.context = self._find(name.lower()) if name else self._contexts[0]
        return None

    def _find(self, name: str) -> ssl.SSLContext:
        found = self._by_name.get(name)
        if found is not None:
            return found
        for pattern, context in self._patterns:  # one label, RFC 9525 section 6.3
            if fnmatchcase(name, pattern) and name.count(".") == pattern.count("."):
                return context
        return self._contexts[0]


def _authority(path: str | None) -> bytes:
    """The content of the file of authorities; empty without one.

    Raises: OSError where it cannot be read, or holds none (ssl.SSLError).
    """
    if path is None:
        return b""
    content = read_regular(path)
    with as_files(content) as (copy,):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(copy)
    return content


def _new_context(spec: ListenerTls, pair: _Pair, authority: bytes, protocols: tuple[str, ...]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = TLS_VERSIONS[spec.min_version]
    if spec.ciphers is not None:
        context.set_ciphers(spec.ciphers)
    context.set_alpn_protocols(list(protocols))
    with as_files(pair.cert, pair.key, authority) as (cert, key, ca):
        context.load_cert_chain(cert, key, password="")
        if authority:
            context.load_verify_locations(ca)
            context.verify_mode = CLIENT_AUTH[spec.client_auth]
            # A resumed session shows no certificate, which may be of an authority that was removed since
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
    return context
