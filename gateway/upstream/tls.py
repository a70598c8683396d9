"""TLS towards endpoints: contexts, which endpoints with the same settings share, and which follow their files.

A context reads the certificates of all authorities, which takes some twenty milliseconds and a megabyte.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import partial
from weakref import WeakValueDictionary

from gateway.config.engine_specs import EngineSpec, TlsSpec
from gateway.net.tls_files import Stamp, follow, stamps_of

_ENCRYPTED = ("https:", "grpcs:")

_Key = tuple[TlsSpec, str, tuple[Stamp, ...]]
# Those in use. A file that has been replaced has another stamp, so endpoints that are made later read it again.
_shared: WeakValueDictionary[_Key, ssl.SSLContext] = WeakValueDictionary()


def endpoint_tls(spec: TlsSpec, url: str) -> ssl.SSLContext | None:
    """The TLS context for an endpoint; None where its connections are not encrypted.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    return client_tls(spec, "http/1.1") if url.startswith(_ENCRYPTED) else None


def engines_tls(engines: Iterable[EngineSpec]) -> list[ssl.SSLContext]:
    """All contexts of the engines' endpoints: while somebody has them, making an endpoint is quick.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    specs = {engine.tls for engine in engines if engine.is_encrypted}
    return [client_tls(spec, protocol) for spec in specs for protocol in ("http/1.1", "h2")]


def client_tls(spec: TlsSpec, protocol: str) -> ssl.SSLContext:
    """TLS for one protocol, by its ALPN name.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    system = ssl.get_default_verify_paths()
    named = (spec.ca, spec.cert, spec.key) if spec.ca else (system.cafile, system.capath, spec.cert, spec.key)
    files = [file for file in named if file is not None]
    key = (spec, protocol, stamps_of(files))
    context = _shared.get(key)
    if context is None:
        context = _shared[key] = _new_context(spec, protocol)
        follow(context, (spec.ca, spec.cert, spec.key), partial(_reload, spec, protocol))
    return context


def _new_context(spec: TlsSpec, protocol: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=spec.ca)
    if not spec.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if spec.cert:
        context.load_cert_chain(spec.cert, spec.key, password="")
    context.set_alpn_protocols([protocol])
    return context


def _reload(spec: TlsSpec, protocol: str, context: ssl.SSLContext) -> None:
    """Load the files into a context that endpoints hold: new connections use them. An authority that was removed from
    its file stays trusted until the rules change.

    Raises: OSError where they cannot be used.
    """
    _new_context(spec, protocol)  # whole, since half of what follows would leave the context without a key
    if spec.ca:
        context.load_verify_locations(spec.ca)
    if spec.cert:
        context.load_cert_chain(spec.cert, spec.key, password="")
