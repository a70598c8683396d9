"""The fields of a head that say who its caller is, and what takes their place."""

from __future__ import annotations

from gateway.auth.authenticator import CREDENTIAL_FIELDS, Authenticator
from gateway.auth.identity import Identity
from gateway.config.auth_specs import AuthSpec
from gateway.config.specs import IdentitySpec
from gateway.protocol.operations import Operation
from gateway.protocol.principal import Principal
from gateway.wire.http1.head import Field

# Answered whoever calls: load balancers probe them.
OPEN_OPERATIONS = frozenset({Operation.SERVER_LIVE, Operation.SERVER_READY})


class Identification:
    """Finds callers by one snapshot of the rules, which have `auth:`. `fields` are the names of the fields that it
    reads; none of them goes on as the client sent it, but for a credential that the rules forward."""

    def __init__(self, auth: AuthSpec, identity: IdentitySpec) -> None:
        self._authenticator = Authenticator(auth)
        self._forwards = auth.forward
        self._tenant_field = identity.tenant_header.encode()
        self.fields = CREDENTIAL_FIELDS | {self._tenant_field}

    def find(self, claimed: list[Field]) -> tuple[Identity, list[Field]]:
        """Who sends a head that has these of the fields; and those of them that engines receive."""
        credentials = [field for field in claimed if field[0] in CREDENTIAL_FIELDS]
        return self._authenticator.identify(credentials), credentials if self._forwards else []

    def with_tenant(self, fields: list[Field], principal: Principal) -> list[Field]:
        """A head's fields with the tenant of its verified caller, where clients without `auth:` send theirs."""
        tenant = self._tenant_field
        return [field for field in fields if field[0] != tenant] + [(tenant, principal.tenant.encode("latin-1"))]
