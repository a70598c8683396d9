"""Client certificates: their names to principals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf

from gateway.auth.identity import Identity, unauthenticated
from gateway.config.auth_specs import CertificateSpec
from gateway.net.client_certificate import CertificateName
from gateway.protocol.principal import Principal

_UNKNOWN = Identity(error=unauthenticated("the client's certificate has no name that the rules of this gateway know"))


class CertificateNames:
    """The names that one snapshot of the rules knows, in their order."""

    def __init__(self, specs: Iterable[CertificateSpec]) -> None:
        self._known = [(spec, re.compile(spec.expression)) for spec in specs]

    def __bool__(self) -> bool:
        return bool(self._known)

    def identify(self, names: Iterable[CertificateName], ends_at: float = inf) -> Identity:
        """Whose certificate has these names, by the first entry of the rules with one of them."""
        for spec, expression in self._known:
            for kind, name in names:
                found = expression.fullmatch(name) if kind == spec.kind else None
                if found is not None:
                    principal = Principal(spec.tenant or found["tenant"], f"cert:{name}")
                    return Identity(principal, expires_at=ends_at)
        return _UNKNOWN
