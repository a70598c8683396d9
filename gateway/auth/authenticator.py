"""Who sends a request: the credentials of its head, verified by the rules in force."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from time import time

from gateway.auth.api_keys import ApiKeys
from gateway.auth.certificates import CertificateNames
from gateway.auth.forwarded_certificate import forwarded_names
from gateway.auth.identity import EXPIRED, Identity, invalid, unauthenticated
from gateway.auth.token_verifier import TokenVerifier
from gateway.config.auth_specs import CREDENTIAL_HEADERS, ApiKeySpec, AuthSpec
from gateway.net.client_certificate import ClientCertificate
from gateway.protocol.principal import Principal

Field = tuple[bytes, bytes]

CREDENTIAL_FIELDS = frozenset(name.encode() for name in CREDENTIAL_HEADERS)

# Verified credentials that a worker remembers: their number, and the bytes of their fields. Fields with
# spaces around the credential are verified each time.
MAX_KNOWN = 10_000
MAX_KNOWN_BYTES = 16 << 20

_BEARER = b"bearer "
_ANONYMOUS = Identity()
_MISSING = Identity(
    error=unauthenticated("this gateway needs an API key: send 'authorization: Bearer KEY' or 'x-api-key: KEY'")
)
_NO_CERTIFICATE = Identity(
    error=unauthenticated("this gateway needs a client certificate, and the connection has shown none")
)
_NOT_BEARER = invalid("the field authorization must be 'Bearer' and an API key")
_AMBIGUOUS = invalid("the request has several credentials: send one")
_UNREADABLE = invalid("the credential is no API key of this gateway")
_EXPIRED = Identity(error=EXPIRED)


class Authenticator:
    """Verifies credentials by one snapshot of the rules."""

    def __init__(self, spec: AuthSpec, claims: Collection[str] = (), previous: Authenticator | None = None) -> None:
        """`claims` are the names of claims that rules read. Keys of issuers, and tokens that were verified, are taken
        over from the previous one where nothing about tokens has changed."""
        self._tokens: TokenVerifier | None = None
        if spec.jwt:
            tokens = previous._tokens if previous is not None else None
            is_same = tokens is not None and (tokens.specs, tokens.claims) == (spec.jwt, frozenset(claims))
            self._tokens = tokens if is_same else TokenVerifier(spec.jwt, claims)
        self._spec = spec
        self._keys = ApiKeys(self._keys_of_files())
        self._stored: tuple[Collection[ApiKeySpec], bool] | None = None
        # Verified before, by the field: a dictionary hashes with a secret of its process, so its time tells nothing
        self.verified: dict[Field, Identity] = {}
        self._num_verified_bytes = 0
        self.certificates = CertificateNames(spec.certificates)
        self._absent = (_MISSING if spec.reads_credentials else _NO_CERTIFICATE) if spec.required else _ANONYMOUS

    def _keys_of_files(self) -> Iterator[ApiKeySpec]:
        return (key for file in self._spec.keys for key in file.keys)

    def use_stored_keys(self, keys: Collection[ApiKeySpec], *, is_current: bool) -> None:
        """Admit the keys in Redis, too, where the rules say so. While they are not current, whose an unknown key is
        cannot be said."""
        if not self._spec.redis_keys or self._stored == (keys, is_current):
            return
        self._stored = keys, is_current
        self._keys = ApiKeys((*keys, *self._keys_of_files()), is_complete=is_current)
        self.verified.clear()
        self._num_verified_bytes = 0

    def identify(self, fields: Sequence[Field]) -> Identity:
        """Who sends a request with these credential fields, names in lower case."""
        if len(fields) == 1:
            known = self.verified.get(fields[0])
            if known is not None and known.expires_at > time():
                return known
        elif not fields:
            return self._absent
        identity = self._verify(fields)
        if identity.error is None and len(fields) == 1:
            self._remember(fields[0], identity)
        return identity

    def is_valid(self, principal: Principal) -> bool:
        """Whether the API key of a verified caller is valid still; other callers were verified for their request."""
        is_api_key = bool(principal.key) and ":" not in principal.key
        return not is_api_key or self._keys.is_valid(principal.key)

    def identify_certificate(self, certificate: ClientCertificate) -> Identity:
        """Who sends requests without a credential field on a connection with this certificate."""
        return self._known_or_anonymous(self.certificates.identify(certificate.names, certificate.ends_at))

    def identify_forwarded(self, field: bytes) -> Identity:
        """Who sends requests without a credential field that a trusted proxy sends on with this certificate."""
        try:
            return self._known_or_anonymous(self.certificates.identify(forwarded_names(field)))
        except ValueError as error:
            return invalid(str(error))

    def _known_or_anonymous(self, identity: Identity) -> Identity:
        return identity if identity.error is None or self._spec.required else _ANONYMOUS

    def _remember(self, field: Field, identity: Identity) -> None:
        name, value = field
        credential = value[len(_BEARER) :] if name == b"authorization" else value
        if credential != credential.strip():  # one credential has a field for each number of spaces
            return
        num_bytes = len(value)
        if len(self.verified) >= MAX_KNOWN or self._num_verified_bytes + num_bytes > MAX_KNOWN_BYTES:
            self.verified.clear()
            self._num_verified_bytes = 0
        self.verified[field] = identity
        self._num_verified_bytes += num_bytes

    def _verify(self, fields: Sequence[Field]) -> Identity:
        credential = b""
        for name, value in fields:
            if name == b"authorization":
                if value[:7].lower() != _BEARER:
                    return _NOT_BEARER
                value = value[7:].strip()
            if credential and value != credential:
                return _AMBIGUOUS
            credential = value
        identity = self._keys.identify(credential)
        if identity is None:
            return self._tokens.identify(credential) if self._tokens is not None else _UNREADABLE
        return identity if identity.error is not None or identity.expires_at > time() else _EXPIRED
