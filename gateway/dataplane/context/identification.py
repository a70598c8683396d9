"""The fields of a head that say who its caller is, and what takes their place."""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace
from ipaddress import ip_address
from time import time
from typing import Protocol

from gateway.auth.authenticator import CREDENTIAL_FIELDS, Authenticator
from gateway.auth.forwarded_certificate import FORWARDED_CERTIFICATE
from gateway.auth.identity import Identity, unauthenticated
from gateway.config.auth_specs import ApiKeySpec, AuthSpec
from gateway.config.specs import RulesSpec
from gateway.net.client_certificate import ClientCertificate
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.principal import Principal
from gateway.protocol.sequence import read_text
from gateway.wire.http1.head import Field

# Answered whoever calls: load balancers probe them.
OPEN_OPERATIONS = frozenset({Operation.SERVER_LIVE, Operation.SERVER_READY})

# Bounds of what is remembered: addresses of peers, and tenants that trusted clients name.
_MAX_PEERS = 4096
_MAX_TENANTS = 4096
_MAX_TENANT_BYTES = 256
_MAX_CERTIFICATES = 1024
_MAX_FORWARDED_BYTES = 4096  # of a field that is remembered; longer ones have the certificate itself

_ENDED = Identity(error=unauthenticated("the client's certificate has ended: connect with a new one"))


class Peer(Protocol):
    """The connection that a head came on."""

    @property
    def peer(self) -> str:
        """Its client's address."""

    @property
    def certificate(self) -> ClientCertificate | None:
        """What its client has shown."""


class Identification:
    """Finds callers by one snapshot of the rules, which have `auth:`. `fields` are the names of the fields that it
    reads; none of them goes on as the client sent it, but for a credential that the rules forward. `verified` are
    identities by the only such field of a head."""

    def __init__(self, rules: RulesSpec, auth: AuthSpec, previous: Identification | None = None) -> None:
        identity = rules.identity
        claims = {name for route in rules.routes for spec in (*route.allow, *route.refuse) for name in spec.claim}
        before = previous._authenticator if previous is not None else None
        self._authenticator: Authenticator = Authenticator(auth, claims, before)
        self.verified = self._authenticator.verified
        self.forwards = auth.forward
        self._tenant_field = identity.tenant_header.encode()
        self._trusts_tenant = identity.trust_header
        is_needed = auth.forwarded_certificates or not identity.trust_header
        self._proxies = identity.trusted_proxies if is_needed else ()
        self._is_proxy: dict[str, bool] = {}
        self._named: dict[tuple[Identity, bytes], Identity] = {}
        credentials = CREDENTIAL_FIELDS if auth.reads_credentials else frozenset[bytes]()
        forwarded = {FORWARDED_CERTIFICATE} if auth.forwarded_certificates else frozenset[bytes]()
        self._no_credentials = forwarded | {self._tenant_field}
        self.fields = credentials | self._no_credentials
        self._by_certificate: Identity | None = None
        self._certified: dict[ClientCertificate, Identification] = {}
        self._forwarded: dict[bytes, Identity] | None = None  # of a proxy that forwards certificates, by the field
        self._of_proxies: Identification | None = None
        if self._proxies:
            self._of_proxies = copy(self)
            self._of_proxies._trusts_tenant, self._of_proxies._certified = True, {}
            self._of_proxies._forwarded = {} if auth.forwarded_certificates else None
        # Whether connections differ in what their heads mean
        self.varies = bool(self._proxies) or bool(self._authenticator.certificates)

    def use_stored_keys(self, keys: Collection[ApiKeySpec], is_current: bool) -> None:
        """Admit the keys in Redis, where the rules say so."""
        self._authenticator.use_stored_keys(keys, is_current=is_current)

    def is_valid(self, principal: Principal) -> bool:
        """Whether requests of a caller that was verified before may go on."""
        return self._authenticator.is_valid(principal)

    def of(self, peer: Peer) -> Identification:
        """The same for one connection: its address may be trusted to name the tenant, its certificate is its caller,
        unless it is that of a proxy that forwards its clients' ones."""
        it = self._of_proxies if self._of_proxies is not None and self._is_trusted(peer.peer) else self
        certificate = peer.certificate
        if certificate is None or not self._authenticator.certificates or it._forwarded is not None:
            return it
        found = it._certified.get(certificate)
        if found is None:
            if len(it._certified) >= _MAX_CERTIFICATES:
                it._certified.clear()
            found = copy(it)
            found._by_certificate = self._authenticator.identify_certificate(certificate)
            found._certified, found._of_proxies = {}, None
            it._certified[certificate] = found
        return found

    def _is_trusted(self, peer: str) -> bool:
        """Whether an address may name the tenant."""
        known = self._is_proxy.get(peer)
        if known is None:
            try:
                address = ip_address(peer)
            except ValueError:  # a Unix socket has none
                return False
            address = getattr(address, "ipv4_mapped", None) or address
            known = any(address in network for network in self._proxies)
            if len(self._is_proxy) >= _MAX_PEERS:
                self._is_proxy.clear()
            self._is_proxy[peer] = known
        return known

    def find(self, claimed: list[Field]) -> tuple[Identity, list[Field]]:
        """Who sends a head that has these of the fields; and those of them that engines receive."""
        tenants: list[bytes] = []
        identity = self._by_certificate
        trusts_tenant = self._trusts_tenant
        if len(claimed) != 1 or claimed[0][0] in self._no_credentials:
            tenants = [value for name, value in claimed if name == self._tenant_field]
            if self._forwarded is not None:
                identity = self._by_forwarded([value for name, value in claimed if name == FORWARDED_CERTIFICATE])
                trusts_tenant = identity is None  # the field may be the client's, whose tenant its certificate says
            claimed = [field for field in claimed if field[0] not in self._no_credentials]
        if claimed or identity is None:
            identity = self._authenticator.identify(claimed)
        elif identity.expires_at <= time():
            identity = _ENDED
        if tenants and trusts_tenant and identity.principal is not None:
            identity = self._in_name_of(identity, identity.principal, tenants)
        return identity, claimed if self.forwards else []

    def _by_forwarded(self, fields: list[bytes]) -> Identity | None:
        """Whose certificate the nearest proxy has verified; None where its client has shown none."""
        if not fields:
            return None
        assert self._forwarded is not None
        field = fields[-1]
        found = self._forwarded.get(field)
        if found is None:
            found = self._authenticator.identify_forwarded(field)
            if len(self._forwarded) >= _MAX_CERTIFICATES:
                self._forwarded.clear()
            if len(field) <= _MAX_FORWARDED_BYTES:
                self._forwarded[field] = found
        return found

    def _in_name_of(self, identity: Identity, principal: Principal, tenants: list[bytes]) -> Identity:
        """The identity of a verified caller who may name its tenant."""
        field, named = self._tenant_field.decode(), tenants[0]
        if len(set(tenants)) > 1:
            return _bad_tenant(f"the field {field} stands more than once, with different values")
        if len(named) > _MAX_TENANT_BYTES:
            return _bad_tenant(f"the field {field} is longer than {_MAX_TENANT_BYTES} bytes")
        if not named.strip():  # names nobody
            return identity
        key = identity, named
        found = self._named.get(key)
        if found is None:
            if len(self._named) >= _MAX_TENANTS:
                self._named.clear()
            in_name = replace(principal, tenant=read_text(named))
            found = self._named[key] = Identity(in_name, expires_at=identity.expires_at)
        return found

    def with_tenant(self, fields: list[Field], principal: Principal) -> list[Field]:
        """A head's fields with the tenant of its verified caller, where clients without `auth:` send theirs."""
        tenant = self._tenant_field
        return [field for field in fields if field[0] != tenant] + [(tenant, principal.tenant.encode())]


def _bad_tenant(what: str) -> Identity:
    return Identity(error=GatewayError(ErrorKind.BAD_REQUEST, what))
