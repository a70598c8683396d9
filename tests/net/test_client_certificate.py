"""Names of client certificates, as rules compare them."""

import asyncio
import ssl
from typing import Any, cast

from gateway.auth.certificates import CertificateNames
from gateway.config.auth_specs import CertificateSpec
from gateway.net.client_certificate import ClientCertificate, certificate_of, retire


class Transport:
    def __init__(self, context: ssl.SSLContext, **found: Any) -> None:
        self._known = {"peercert": {"notAfter": "Jan  1 00:00:00 2099 GMT", **found}, "ssl_object": self}
        self.context = context

    def get_extra_info(self, name: str) -> Any:
        return self._known[name]


def certificate(context: ssl.SSLContext | None = None, **found: Any) -> ClientCertificate:
    context = context or ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown = certificate_of(cast(asyncio.BaseTransport, Transport(context, **found)))
    assert shown is not None
    return shown


def test_names_that_could_be_another_caller_s_are_left_out() -> None:
    """Control characters, wildcards, texts without end and other kinds of names name no caller; DNS names are in lower
    case, and values of the subject are escaped."""
    names = [("DNS", "A.test"), ("DNS", "*.test"), ("URI", "a\0b"), ("URI", "u" * 3000), ("IP Address", "10.0.0.1")]
    subject = [[("countryName", "DE")], [("organizationName", "Acme, Inc."), ("commonName", "it+1")]]
    found = certificate(subjectAltName=names, subject=subject)
    assert found.names == (("dns", "a.test"), ("subject", "O=Acme\\, Inc.+CN=it\\+1,C=DE"))


def test_connections_share_a_certificate() -> None:
    """Connections with the same names, end and context have one object; with another context, as after a change of the
    authority, another."""
    context, other = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) for _ in range(2))
    names = [("URI", "spiffe://a/b")]
    first = certificate(context, subjectAltName=names)
    assert certificate(context, subjectAltName=names) is first
    assert certificate(other, subjectAltName=names) is not first
    assert not first.is_over
    retire([context])
    assert first.is_over


def test_an_entry_is_for_one_kind_of_name() -> None:
    """A DNS name with the text of a URI is not that URI, and a pattern matches the whole name."""
    known = CertificateNames([CertificateSpec(uri="spiffe://a/{tenant}"), CertificateSpec(dns="a.test", tenant="t")])
    for names in (
        [("DNS", "spiffe://a/b")],
        [("URI", "xspiffe://a/b")],
        [("URI", "spiffe://a/b/c")],
        [("URI", "a.test")],
    ):
        assert known.identify(certificate(subjectAltName=names).names).error is not None
    principal = known.identify(certificate(subjectAltName=[("DNS", "x"), ("URI", "spiffe://a/b")]).names).principal
    assert principal is not None and (principal.tenant, principal.key) == ("b", "cert:spiffe://a/b")
