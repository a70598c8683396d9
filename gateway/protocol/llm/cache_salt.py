"""`cache_salt`: requests of different salts share no blocks of an engine's prefix cache.

A tenant's salt is a digest of its name and of the client's own salt. No other tenant can write it, and all gateways
write the same. Source: vLLM's documentation of its prefix cache, "Cache Isolation for Security".
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from typing import Any

from gateway.protocol.json_bounds import JsonBounds
from gateway.protocol.llm.json_fields import bad_request, dumped
from gateway.protocol.operations import LlmApi

_FIELD = "cache_salt"
# The APIs that have the field.
SALTED_APIS = frozenset({LlmApi.CHAT, LlmApi.COMPLETIONS, LlmApi.RESPONSES})


def tenant_salt(tenant: str, salt: str = "") -> str:
    """The salt of a tenant's requests with this salt of the client."""
    name = tenant.encode(errors="surrogatepass")
    text = b"pointsman %d:%b%b" % (len(name), name, salt.encode(errors="surrogatepass"))
    return urlsafe_b64encode(hashlib.sha256(text).digest()).decode("ascii").rstrip("=")


def salted_fields(fields: dict[str, Any], tenant: str) -> dict[str, Any]:
    """These fields of a body with the salt of a tenant. Raises: GatewayError(BAD_REQUEST)."""
    salt = fields.get(_FIELD)
    if salt is not None and not isinstance(salt, str):
        raise bad_request(f"{_FIELD!r} is no text")
    kept = {name: value for name, value in fields.items() if name.lower() != _FIELD}
    return kept | {_FIELD: tenant_salt(tenant, salt or "")}


def salted(body: bytes, tenant: str, bounds: JsonBounds) -> bytes:
    """A body with the salt of a tenant. Raises: GatewayError(BAD_REQUEST, BODY_TOO_LARGE)."""
    try:
        fields = bounds.read(body)
    except ValueError as error:
        raise bad_request(f"failed to parse the request JSON: {error}") from error
    if not isinstance(fields, dict):
        raise bad_request("the request JSON must be an object")
    return dumped(salted_fields(fields, tenant))
