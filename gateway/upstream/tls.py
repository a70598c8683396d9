"""TLS to endpoints."""

from __future__ import annotations

import ssl

from gateway.config.specs import TlsSpec

_ENCRYPTED = ("https:", "grpcs:")


def endpoint_tls(spec: TlsSpec, url: str) -> ssl.SSLContext | None:
    """What connections to an endpoint are made with; None where they are not encrypted.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    return client_tls(spec, "http/1.1") if url.startswith(_ENCRYPTED) else None


def client_tls(spec: TlsSpec, protocol: str) -> ssl.SSLContext:
    """TLS for one protocol, by its ALPN name.

    Raises: OSError or ssl.SSLError where a certificate file cannot be read.
    """
    context = ssl.create_default_context(cafile=spec.ca)
    if not spec.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if spec.cert:
        context.load_cert_chain(spec.cert, spec.key)
    context.set_alpn_protocols([protocol])
    return context
