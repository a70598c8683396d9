"""API keys of the inference ports: `pmi-ID-SECRET`. The id is public and names the entry, the secret has 256 random
bits, and the gateway has the SHA-256 of the whole key."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from time import time

from gateway.auth.identity import Identity, invalid
from gateway.config.auth_specs import ApiKeySpec
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.principal import Principal

_KEY = re.compile(rb"pmi-([0-9a-f]{12})-[A-Za-z0-9_-]{43}")
_REFUSED = invalid("the API key is unknown")
_UNREADABLE = Identity(
    error=GatewayError(ErrorKind.NO_HEALTHY_ENDPOINT, "the API keys in Redis cannot be read: try again later")
)


def make_key() -> tuple[str, str, str]:
    """A new key, its id, and its hash as files have it."""
    id = secrets.token_hex(6)
    key = f"pmi-{id}-{secrets.token_urlsafe(32)}"
    return key, id, f"sha256:{sha256(key.encode()).hexdigest()}"


class ApiKeys:
    """The keys that are valid; of several with one id the last. Unless they are complete, a key with another id may be
    valid, too."""

    def __init__(self, specs: Iterable[ApiKeySpec], *, is_complete: bool = True) -> None:
        self._unknown = _REFUSED if is_complete else _UNREADABLE
        self._by_id = {
            spec.id.encode(): (spec.hash, Identity(Principal(spec.tenant, spec.id), expires_at=spec.expires))
            for spec in specs
        }

    def is_valid(self, id: str) -> bool:
        """Whether the key with this id may be used on; where the keys are not complete, it may."""
        known = self._by_id.get(id.encode())
        return known[1].expires_at > time() if known is not None else self._unknown is _UNREADABLE

    def identify(self, credential: bytes) -> Identity | None:
        """Whose key it is; None where it is not one of this form."""
        found = _KEY.fullmatch(credential)
        if found is None:
            return None
        known = self._by_id.get(found[1])
        # The lookup is by the public id alone; the secret is compared as a hash, in constant time
        if known is None:
            return self._unknown
        if not compare_digest(sha256(credential).digest(), known[0]):
            return _REFUSED
        return known[1]
