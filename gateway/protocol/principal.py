"""Who sends a request, as authentication has verified it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

# Where limits find the key of a principal; no client's field has such a name.
KEY_FIELD = b":key"


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified caller. `key` is the public id of its API key, or `sub:` and the subject of its
    token, which cannot be the id of a key; `claims` have the texts of
    each claim that rules may read."""

    tenant: str
    key: str = ""
    claims: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def mark(self) -> bytes:
        """All of it in one line: equal principals have equal marks."""
        return orjson.dumps([self.tenant, self.key, dict(self.claims)], option=orjson.OPT_SORT_KEYS)


def tenant_of(principal: Principal | None) -> str:
    """The tenant of a caller; empty where it is anonymous."""
    return principal.tenant if principal is not None else ""


def principal_of_mark(mark: bytes) -> Principal:
    tenant, key, claims = orjson.loads(mark)
    return Principal(tenant, key, {name: tuple(values) for name, values in claims.items()})
