"""`x-forwarded-client-cert`: the names of a client's certificate that a proxy has verified.

Source: Envoy, docs/root/configuration/http/http_conn_man/headers.rst, x-forwarded-client-cert. Each proxy appends an
element, so the last one is of the nearest proxy.
"""

from __future__ import annotations

import re

from gateway.net.client_certificate import CertificateName, usable_names
from gateway.protocol.sequence import read_text

FORWARDED_CERTIFICATE = b"x-forwarded-client-cert"

# A value with quotes ends at the next one that no backslash precedes. Quotes stand nowhere else, so that an element
# of a client cannot hide where that of the proxy begins.
_PAIR = re.compile(r'\s*([A-Za-z]+)=("(?:[^"\\]|\\.)*"|[^",;]*)(;|,|\Z)')
_KINDS = ("uri", "dns", "subject")


def forwarded_names(value: bytes) -> tuple[CertificateName, ...]:
    """The names in the element of the nearest proxy.

    Raises: ValueError where the field is not as Envoy writes it.
    """
    text, at = read_text(value), 0
    pairs: list[CertificateName] = []
    while True:
        found = _PAIR.match(text, at)
        if found is None:
            raise ValueError(f"{FORWARDED_CERTIFICATE.decode()} is not as Envoy writes it")
        key, name, end = found.groups()
        pairs.append((key.lower(), name[1:-1].replace('\\"', '"') if name[:1] == '"' else name))
        at = found.end()
        if not end:
            return tuple(usable_names(pair for pair in pairs if pair[0] in _KINDS))
        if end == ",":
            pairs = []
