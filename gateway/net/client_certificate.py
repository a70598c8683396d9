"""The certificate that a client has shown, and that TLS has verified: its names, and until when it holds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from time import time
from typing import Any
from weakref import WeakSet, WeakValueDictionary

# Kinds of names, as rules call them, by those of `ssl`; other kinds name no caller.
_KINDS = {"URI": "uri", "DNS": "dns", "email": "email"}
# Longer names, and those with control characters or wildcards, name no caller. SPIFFE ids have up to 2,048 bytes.
_MAX_NAME = 2048

# Short names of attributes in the text of a subject: RFC 4514, section 3; others have OpenSSL's long name.
_SHORT = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
_ESCAPED = str.maketrans({character: f"\\{character}" for character in ',+"\\<>;='})

CertificateName = tuple[str, str]  # its kind and itself

# Contexts whose authorities have been replaced since.
_retired: WeakSet[ssl.SSLContext] = WeakSet()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ClientCertificate:
    """One object for all connections that show the same names until the same time to one context."""

    names: tuple[CertificateName, ...]  # those of `subjectAltName` first: uri, dns, email; subject
    ends_at: float
    _context: ssl.SSLContext

    @property
    def is_over(self) -> bool:
        """Whether a connection that has shown it must be made anew: it has ended, or its authority was replaced."""
        return time() >= self.ends_at or self._context in _retired


_known: WeakValueDictionary[tuple[object, ...], ClientCertificate] = WeakValueDictionary()


def certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """The certificate that a connection's client has shown; None without one that was verified."""
    found = transport.get_extra_info("peercert")
    tls = transport.get_extra_info("ssl_object")
    if not found or tls is None:
        return None
    names = tuple(usable_names(_names(found)))
    key = names, float(ssl.cert_time_to_seconds(found["notAfter"])), tls.context
    known = _known.get(key)
    if known is None:
        known = _known[key] = ClientCertificate(*key)
    return known


def retire(contexts: Iterable[ssl.SSLContext]) -> None:
    """The authorities of these were replaced: certificates that they have verified are over."""
    _retired.update(contexts)


def _names(found: dict[str, Any]) -> list[CertificateName]:
    names = [(_KINDS[kind], name) for kind, name in found.get("subjectAltName", ()) if kind in _KINDS]
    return [*names, ("subject", _subject(found.get("subject", ())))]


def usable_names(names: Iterable[CertificateName]) -> Iterable[CertificateName]:
    """The names that may identify a caller."""
    for kind, name in names:
        if name and len(name) <= _MAX_NAME and name.isprintable() and (kind == "subject" or "*" not in name):
            yield kind, name.lower() if kind == "dns" else name


def _subject(parts: Iterable[Iterable[tuple[str, str]]]) -> str:
    """RFC 4514: the last part first, `CN=batch,O=Acme`."""
    texts = [
        "+".join(f"{_SHORT.get(name, name)}={value.translate(_ESCAPED)}" for name, value in part) for part in parts
    ]
    return ",".join(reversed(texts))
